"""Its place here puts tests/ on the import path: `contracts` and `helpers` are imported from there."""

import pytest

pytest.register_assert_rewrite("contracts", "helpers")
