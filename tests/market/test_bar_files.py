"""Files of bars as people have them are read right, or refused with the remedy; none is read wrong."""

import numpy as np
import pytest

from leeward.config.trading import DataConfig
from leeward.errors import DataError
from leeward.market import load

from ..support.bar_files import REFUSED, SHAPES


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_in_a_usual_shape_is_read(name, tmp_path):
    shape = SHAPES[name]
    bars = load(shape.write(tmp_path) or tmp_path, DataConfig(**shape.settings))
    wanted = [shape.bars] if shape.second is None else [shape.bars, shape.second]
    assert len(bars.assets) == len(wanted)
    if shape.asset is not None:
        assert bars.assets[0] == shape.asset
    for a, frame in enumerate(wanted):
        here = bars.present[:, a]
        np.testing.assert_array_equal(bars.time[here], frame.index.to_numpy().astype("datetime64[ns]"))
        for column in ("open", "high", "low", "close", *(["volume"] if shape.volume else [])):
            np.testing.assert_allclose(getattr(bars, column)[here, a], frame[column], rtol=1e-12, err_msg=column)
    assert shape.volume or np.isnan(bars.volume).all()
    assert shape.says in "\n".join(map(str, bars.problems))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_the_remedy(name, tmp_path):
    write, remedy = REFUSED[name]
    with pytest.raises(DataError, match=remedy):
        load(write(tmp_path) or tmp_path)
