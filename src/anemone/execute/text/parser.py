"""A program in MIL text as the message that a .mlpackage holds.

    program(1.3) [attributes] { functions }
    func name<opset>(type name, ...) [attributes] { operations } -> (results);
    type name, type name = kind(operand = value or name or (several), ...)[attributes] (type name, ...) { block } ...;

Blocks inside an operation follow its attributes.
"""

from typing import Any

from anemone.errors import ExecuteError
from anemone.execute.text.literals import Constant, parse_constant
from anemone.execute.text.messages import Messages
from anemone.execute.text.tokens import Tokens
from anemone.execute.text.types import DEEPEST, begins_type, parse_type

_OPSETS = {"ios15": "CoreML5", "ios16": "CoreML6", "ios17": "CoreML7", "ios18": "CoreML8", "ios26": "CoreML9"}
Attributes = dict[str, Constant]


def parse_program(text: str, source: str, program: Any) -> dict[str, Attributes]:
    """Fill a Program message and return the attributes of each function, in the order of the text.

    ``source`` names the text in messages. Raises ExecuteError with line, column and what was expected.
    """
    return _Parser(Tokens(text, source)).program(program)


class _Parser:
    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.messages = Messages()

    def program(self, message: Any) -> dict[str, Attributes]:
        tokens = self.tokens
        tokens.expect("program", "at the beginning of a program")
        tokens.expect("(", "after program")
        if not tokens.current[:1].isdigit():
            raise tokens.error("the version of the program")
        tokens.advance()
        tokens.expect(")", "after the version of the program")
        for key, constant in self.attributes().items():
            self.messages.fill_value(message.attributes[key], constant)
        tokens.expect("{", "before the functions")
        functions: dict[str, Attributes] = {}
        while tokens.accept("func"):
            name = tokens.name("the name of a function")
            if name in functions:
                raise tokens.fault(f"the function {name} is defined twice")
            functions[name] = self.function(message.functions[name])
        tokens.expect("}", "after the functions")
        if tokens.current:
            raise tokens.error("the end of the text")
        if not functions:
            raise ExecuteError(f"{tokens.source} has no functions")
        message.version = 1
        return functions

    def function(self, message: Any) -> Attributes:
        tokens = self.tokens
        tokens.expect("<", "and the op set after the name of a function")
        opset = tokens.name("the name of an op set")
        message.opset = _OPSETS.get(opset, opset)
        tokens.expect(">", "after the op set")
        tokens.expect("(", "before the inputs of a function")
        self.variables(message.inputs)
        attributes = self.attributes()
        self.block(message.block_specializations[message.opset], 0)
        tokens.expect(";", "after the results of a function")
        return attributes

    def variables(self, messages: Any) -> None:
        """Typed names up to and with the closing parenthesis."""
        tokens = self.tokens
        while tokens.current != ")":
            if len(messages):
                tokens.expect(",", "or ')' after an input")
            self.variable(messages.add())
        tokens.advance()

    def variable(self, message: Any) -> None:
        self.messages.fill_type(message.type, parse_type(self.tokens))
        message.name = self.tokens.name("the name of a value after its type")

    def attributes(self) -> Attributes:
        tokens, found = self.tokens, Attributes()
        if tokens.accept("[]") or not tokens.accept("["):
            return found
        while not found or tokens.accept(","):
            key = tokens.name("the name of an attribute")
            tokens.expect("=", f"after {key}")
            if key in found:
                raise tokens.fault(f"the attribute {key} is given twice")
            found[key] = parse_constant(tokens)
        tokens.expect("]", "after the attributes")
        return found

    def block(self, message: Any, depth: int) -> None:
        tokens = self.tokens
        if depth > DEEPEST:
            raise tokens.fault(f"blocks are nested more than {DEEPEST} deep")
        tokens.expect("{", "before the operations of a block")
        while tokens.current != "}":
            self.operation(message.operations.add(), depth)
        tokens.advance()
        tokens.expect("->", "and the results after a block")
        tokens.expect("(", "before the results")
        while tokens.current != ")":
            if len(message.outputs):
                tokens.expect(",", "or ')' after a result")
            message.outputs.append(tokens.name("the name of a result"))
        tokens.advance()

    def operation(self, message: Any, depth: int) -> None:
        tokens = self.tokens
        if begins_type(tokens.current):
            while not len(message.outputs) or tokens.accept(","):
                self.variable(message.outputs.add())
            tokens.expect("=", "after the results of an operation")
        message.type = tokens.name("an operation")
        tokens.expect("(", "and the operands of an operation")
        first = True
        while tokens.current != ")":
            if not first:
                tokens.expect(",", "or ')' after an operand")
            first = False
            self.operand(message.inputs)
        tokens.advance()
        for key, constant in self.attributes().items():
            self.messages.fill_value(message.attributes[key], constant)
        while tokens.current in ("(", "{"):
            inner = message.blocks.add()
            if tokens.accept("("):
                self.variables(inner.inputs)
            self.block(inner, depth + 1)
        tokens.expect(";", "after an operation")

    def operand(self, inputs: Any) -> None:
        tokens = self.tokens
        key = tokens.name("the name of an operand")
        if key in inputs:
            raise tokens.fault(f"the operand {key} is given twice")
        tokens.expect("=", f"after {key}")
        bindings = inputs[key].arguments
        if not tokens.accept("("):
            self.binding(bindings.add())
            return
        while tokens.current != ")":
            if len(bindings):
                tokens.expect(",", f"or ')' after a value of {key}")
            self.binding(bindings.add())
        tokens.advance()

    def binding(self, message: Any) -> None:
        if begins_type(self.tokens.current):
            self.messages.fill_value(message.value, parse_constant(self.tokens))
        else:
            message.name = self.tokens.name("a value or the name of one")
