"""Policy servers under load: the server, its clients, and servers to compare it with."""
