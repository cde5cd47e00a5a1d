"""zfabric: a brokerless compute fabric in Python over ZeroMQ."""
