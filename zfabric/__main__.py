"""``python -m zfabric``: the command ``zfabric``."""

from zfabric.cli.main import main

if __name__ == "__main__":
    main()
