"""One HTML page on a corpus, its selection and its runs.

The package is callable: ``mprm.report(paths, out=…)`` is ``mprm.report.report(paths, out=…)``, whether or not
``mprm.report`` has been imported as a package before.
"""

import sys
from inspect import signature
from types import ModuleType

from mprm.report.report import ReportConfig as ReportConfig, ReportResult as ReportResult, report as report


class _CallablePackage(ModuleType):
    __call__ = staticmethod(report)
    __signature__ = signature(report)


sys.modules[__name__].__class__ = _CallablePackage
