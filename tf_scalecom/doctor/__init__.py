"""`python -m tf_scalecom doctor`: what a worker has, and whether it reaches the others.

* `machine`: versions, kernels, compilers, GPUs, how TensorFlow was built.
* `network`: the doctors of a cluster, one per worker, who call each other.
* `horovod`: what a script, and the way it was started, still have of Horovod.
* `command`: options, the report as text and as JSON, the exit code.
"""
