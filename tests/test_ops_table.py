"""The table of operations in the docs is what the code and its tests say."""

import ops_table

from anemone.execute.ops import DEFINITIONS


def test_the_page_is_up_to_date():
    assert ops_table.DOCS.read_text(encoding="utf-8") == ops_table.table(), "run python tests/ops_table.py"


def test_every_operation_is_executed_or_excluded_with_a_reason():
    missing = {kind for kind in ops_table.definitions() if not ops_table.executed(kind)}
    assert missing == set(ops_table.EXCLUDED)


def test_every_operation_has_a_truth():
    tested = ops_table.truths()
    assert {kind for kind in {*DEFINITIONS, *ops_table.READ} if not tested.get(kind)} == set()
    assert all(kind in DEFINITIONS or kind in ops_table.READ for kind in tested)
