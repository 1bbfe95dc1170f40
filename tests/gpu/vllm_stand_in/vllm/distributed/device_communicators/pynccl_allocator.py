_graph_pool_id = None


def set_graph_pool_id(pool):
    global _graph_pool_id
    _graph_pool_id = pool
