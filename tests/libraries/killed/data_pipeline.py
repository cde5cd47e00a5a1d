"""A pipeline of Data ends with every row, once."""

import json
import time

import ray.data
from three_nodes import three_nodes

if __name__ == "__main__":
    began = time.time()
    with three_nodes(workers=3) as nodes:

        def double(batch):
            nodes.note()
            time.sleep(0.3)
            return {"double": batch["id"] * 2}

        rows = ray.data.range(90_000, override_num_blocks=90).map_batches(double, batch_size=None)
        assert rows.sum("double") == 90_000 * 89_999
    print(json.dumps({"program": "data killed", "seconds": time.time() - began}))
