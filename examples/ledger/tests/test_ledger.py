from ledger import Ledger


def test_transfer_moves_the_amount():
    ledger = Ledger({"rent": 100, "food": 20})
    ledger.transfer("rent", "food", 30)
    assert ledger.balances == {"rent": 70, "food": 50}


def test_undo_restores_the_balances():
    ledger = Ledger({"rent": 100})
    ledger.transfer("rent", "food", 30)
    ledger.undo()
    assert ledger.balances == {"rent": 100}


def test_undo_without_a_past_changes_nothing():
    ledger = Ledger({"rent": 100})
    ledger.undo()
    assert ledger.balances == {"rent": 100}
