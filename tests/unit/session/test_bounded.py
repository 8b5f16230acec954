from hypothesis import given
from hypothesis import strategies as st

from dgym.session._execution import bounded


@given(st.text(max_size=400), st.integers(min_value=70, max_value=300))
def test_text_fits_and_keeps_head_and_tail(text, limit):
    kept, cut = bounded(text, limit)
    assert len(kept.encode()) <= limit
    assert (cut == 0) == (len(text.encode()) <= limit)
    if cut:
        head, _, rest = kept.partition("\n[… ")
        assert text.startswith(head)
        assert text.endswith(rest.partition(" bytes cut …]\n")[2])
