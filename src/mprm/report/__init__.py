"""One HTML page on a corpus, its selection and its runs; the package itself is callable, as `mprm.report.report`."""

import sys
from inspect import signature
from types import ModuleType

from mprm.report.report import ReportConfig as ReportConfig, ReportResult as ReportResult, report as report


class _CallablePackage(ModuleType):
    __call__ = staticmethod(report)
    __signature__ = signature(report)


sys.modules[__name__].__class__ = _CallablePackage
