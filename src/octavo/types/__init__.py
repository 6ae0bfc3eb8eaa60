"""What travels between the parts: plain msgspec Structs, no behaviour beyond validation."""

from octavo.types.plan import NewSeq as NewSeq
from octavo.types.plan import SeqPlan as SeqPlan
from octavo.types.plan import StepPlan as StepPlan
from octavo.types.plan import StepResult as StepResult
from octavo.types.request import Completion as Completion
from octavo.types.request import FinishReason as FinishReason
from octavo.types.request import Logprob as Logprob
from octavo.types.request import Request as Request
from octavo.types.request import RequestOutput as RequestOutput
from octavo.types.request import SeqOutput as SeqOutput
from octavo.types.request import TokenLogprobs as TokenLogprobs
from octavo.types.sampling import SamplingParams as SamplingParams
