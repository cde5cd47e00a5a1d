"""The page: a cluster seen in a browser. A process of its own serves it and asks the daemon the queries of the command line.

``app`` is the server, and ``security`` decides who may see the page. ``watching`` asks while somebody looks. ``spans`` reads the task
stream, ``lines`` the output of workers, and ``views`` combines what each view shows. The modules of the browser are in ``static``.
"""
