"""How the replicas' gradients become one."""
