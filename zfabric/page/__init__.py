"""The page: a cluster in a browser. A process of its own serves it, by the queries of the command line.

``app`` is the server, ``security`` admits requests, ``watching`` queries while somebody looks. ``spans`` reads the task stream, ``lines``
workers' output; ``views`` combines what is shown. The browser's modules are in ``static``.
"""
