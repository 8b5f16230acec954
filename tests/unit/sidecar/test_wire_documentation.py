"""docs/wire.md has every call, code and setting, with the truth about them."""

from pathlib import Path

from dgym.sidecar.settings import PREFIX, PooledSettings, Settings
from dgym.wire.http import ErrorCode
from dgym.wire.http import Path as CallPath
from dgym.wire.termination import TerminationMessage

PAGE = (Path(__file__).parents[3] / "docs" / "wire.md").read_text("utf-8")


def test_every_call_is_there():
    for path in CallPath:
        assert path in PAGE


def test_every_code_is_there_with_its_status():
    for code in ErrorCode:
        assert f"| `{code}` | {code.status} |" in PAGE


def test_every_setting_is_there():
    for name in {*Settings.__struct_fields__, *PooledSettings.__struct_fields__}:
        assert f"| `{PREFIX}{name.upper()}` |" in PAGE


def test_every_field_of_the_termination_message_is_there():
    for name in TerminationMessage.__struct_encode_fields__:
        assert f"`{name}`" in PAGE
