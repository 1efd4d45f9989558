"""Which process of `pytest -n` runs what, where only quick tests on workers are selected."""

import functools
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling


class OneCluster(LoadScopeScheduling):
    """Files as a whole, like `--dist loadfile`; all that have tests marked quick to one process.

    So there is one cluster of workers, where each process would start its own.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "on the cluster" if self._has_quick_tests(path) else path

    @functools.cache  # noqa: B019 (one object lives as long as the session)
    def _has_quick_tests(self, path: str) -> bool:
        return "pytest.mark.quick" in Path(self.config.rootpath, path).read_text()
