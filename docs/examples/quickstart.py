import numpy as np

import zfabric as zf

zf.init()  # this machine's cores, or the cluster you have started; no port is opened


@zf.remote
def distances(points, center):
    return np.linalg.norm(points - center, axis=1)


@zf.remote
def nearest(*columns):
    return np.argmin(columns, axis=0)


points = zf.put(np.random.default_rng(0).random((100_000, 3)))  # stored once, read in place by every worker
centers = [np.full(3, 0.2), np.full(3, 0.5), np.full(3, 0.8)]
columns = [distances.remote(points, center) for center in centers]  # returns at once: these are futures
sizes = np.bincount(zf.get(nearest.remote(*columns)))  # futures as arguments: their values never pass through here
print("points nearest to each center:", sizes.tolist())
