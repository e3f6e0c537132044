"""What may be stored in the log, and its JSON form.

Everything a run records passes through here before anything happens: a value is *lowered* to plain
JSON, or refused with the path to what cannot be stored. What comes back is `decode(encode(x))`, so a
run and its replay see the same value.

Not here: events and where their bytes are stored (`events.py`, `log.py`).
"""

from holdfast.core.values.declared_types import (
    dataclass_fields,
    has_msgspec_metadata,
    has_pydantic_metadata,
    is_constrained,
    is_dataclass,
    is_path,
    is_plain_json,
    is_pydantic_model,
    mentions_pydantic,
)
from holdfast.core.values.encoding import (
    BYTES_MAX,
    Codec,
    canonical_flat,
    check_storable,
    codec_of,
    decode,
    digest,
    encode,
    encode_struct,
    sha256,
)
from holdfast.core.values.frozen import FrozenDict, FrozenList, freeze, thaw
from holdfast.core.values.lowering import DEPTH_MAX, REDACTED, canonical, lower

__all__ = [
    "BYTES_MAX",
    "DEPTH_MAX",
    "REDACTED",
    "Codec",
    "FrozenDict",
    "FrozenList",
    "canonical",
    "canonical_flat",
    "check_storable",
    "codec_of",
    "dataclass_fields",
    "decode",
    "digest",
    "encode",
    "encode_struct",
    "freeze",
    "has_msgspec_metadata",
    "has_pydantic_metadata",
    "is_constrained",
    "is_dataclass",
    "is_path",
    "is_plain_json",
    "is_pydantic_model",
    "lower",
    "mentions_pydantic",
    "sha256",
    "thaw",
]
