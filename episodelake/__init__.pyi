"""The public names, for type checkers; `__init__.py` loads them on first use."""

__version__: str

from . import errors as errors
from . import types as types
from .episode_store import EpisodeStore, EpisodeView
from .exchange import formats
from .exchange.table.mapping import FILE, ColumnMapping
from .exchange.video_files import frames_of
from .importing.importing import import_dataset
from .lakes.open_lake import lake
from .lakes.pulling import preview, pull
from .opening import create, merge, recover
from .opening import open_store as open
from .publishing.publishing import published
from .readers.columns.mapped import Cache
from .readers.episode import AgentEpisode, Episode, MultiAgentEpisode
from .readers.loading.feed import Batches, Shard
from .readers.loading.follow_window import Follow
from .readers.loading.loader import Loader
from .readers.loading.mixing import mix
from .readers.loading.outputs import Output
from .readers.loading.priorities import Prioritized
from .readers.loading.transforms.episode_transforms import GAE, FrameStack, Relabel, ReturnToGo
from .readers.loading.transforms.frame_tensors import ToTensor
from .readers.loading.transforms.key_transforms import Cast, Clip, Flatten, OneHot, RenameKeys, SelectKeys
from .readers.loading.transforms.normalize import Normalize
from .readers.loading.transforms.on_read import DerivedColumns
from .readers.loading.transforms.torch_module import TorchModule
from .readers.loading.units import Deltas, NSteps, Transitions
from .readers.loading.windows import Episodes, Windows, unpadded
from .readers.measures.quality import normalized_score
from .replay_buffer.buffer import ReplayBuffer
from .rollouts.declaration import Rollouts
from .rollouts.packing import Packed, Padded
from .store.environments.codecs import register_artifact_codec
from .store.errors import EpisodelakeError
from .store.frames import Video
from .store.spaces import Codec, register_codec
from .writers.collecting.actor import Policy, PolicyOutput
from .writers.collecting.collect import collect
from .writers.episodes.episode_writer import EpisodeWriter

__all__ = [
    "AgentEpisode",
    "Batches",
    "Cache",
    "Cast",
    "Clip",
    "Codec",
    "ColumnMapping",
    "Deltas",
    "DerivedColumns",
    "Episode",
    "EpisodeStore",
    "EpisodeView",
    "EpisodeWriter",
    "EpisodelakeError",
    "Episodes",
    "FILE",
    "Flatten",
    "Follow",
    "FrameStack",
    "GAE",
    "Loader",
    "MultiAgentEpisode",
    "NSteps",
    "Normalize",
    "OneHot",
    "Output",
    "Packed",
    "Padded",
    "Policy",
    "PolicyOutput",
    "Prioritized",
    "Relabel",
    "RenameKeys",
    "ReplayBuffer",
    "ReturnToGo",
    "Rollouts",
    "SelectKeys",
    "Shard",
    "ToTensor",
    "TorchModule",
    "Transitions",
    "Video",
    "Windows",
    "collect",
    "create",
    "formats",
    "frames_of",
    "import_dataset",
    "lake",
    "merge",
    "mix",
    "normalized_score",
    "open",
    "preview",
    "published",
    "pull",
    "recover",
    "register_artifact_codec",
    "register_codec",
    "unpadded",
]
