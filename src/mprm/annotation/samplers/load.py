"""Load a policy to sample from in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mprm.models.checkpoint import fingerprint_of, load_backbone

if TYPE_CHECKING:
    from mprm.annotation.samplers.sampler import Sampler


def load_policy(path: str | Path, *, device: str = "auto", dtype: str = "auto", rows: int | None = None) -> Sampler:
    """A sampler of the checkpoint in a folder, for `mprm.annotate` and `mprm.sample`.

    Many requests are answered at a time, what they share computed once; one by one, with a word on why,
    where the model is of a kind that is not known to allow it.

    Parameters
    ----------
    device, dtype
        See `mprm.models.checkpoint.load_backbone`.
    rows
        Most answers at a time; 1,024 on a GPU and 64 elsewhere where None.
    """
    backbone = load_backbone(path, dtype=dtype, device=device)
    # torch comes with them: they are loaded only now, when it is known to be there
    from mprm.annotation.samplers.policy import TransformersSampler
    from mprm.annotation.samplers.prefix_sampler import PrefixSampler
    from mprm.models.prefix_tree import can_share_prefixes

    name, weights = str(path), fingerprint_of(path)
    reason = can_share_prefixes(backbone)
    if reason is None:
        return PrefixSampler(backbone, name=name, weights=weights, rows=rows)
    print(f"{path} answers one request at a time, and slower: {reason}", file=sys.stderr)
    return TransformersSampler(backbone, name=name, weights=weights, rows_per_batch=rows or 16)
