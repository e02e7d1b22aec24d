"""The end of a classifier: the likeliest class and the probability of each."""

from anemone.errors import ExecuteError
from anemone.execute.dtypes import Array
from anemone.execute.ops.registry import Kernel, Node, op


@op("classify")
def classify(node: Node) -> Kernel:
    labels = node.static("classes")
    if labels is None:
        raise ExecuteError("its operand classes is missing")
    names = labels.reshape(-1).tolist()

    def run(probabilities: Array) -> tuple[str | int, dict[str | int, float]]:
        values = probabilities.reshape(-1)
        if values.size != len(names):
            raise ExecuteError(f"there are {len(names)} classes, but {values.size} probabilities")
        return names[int(values.argmax())], dict(zip(names, values.tolist(), strict=True))

    return run
