"""The page: a cluster seen in a browser. A process of its own serves it and asks the daemon the queries of the command line.

``security`` decides who may see it, ``watching`` asks while somebody looks, ``spans`` reads the task stream, ``lines`` the output of
workers, ``views`` puts together what each view shows, ``app`` is the server. The modules of the browser are in ``static``.
"""
