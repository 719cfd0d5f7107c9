"""``GET /v1/models``."""

from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from gateway.api.auth import needs
from gateway.api.identified import identified
from gateway.api.openapi import described
from gateway.errors import ModelNotFound, cut
from gateway.grants import Grant
from gateway.service import Gateway
from gateway.types import ModelInfo


class ModelObject(msgspec.Struct, frozen=True, kw_only=True):
    """One model, as the OpenAI API shows it, with its context length."""

    id: str
    object: str = "model"
    created: int
    owned_by: str
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    object: str = "list"
    data: list[ModelObject]


@get("/models", opt=needs(), operation_class=described())
async def list_models(
    request: Request[Any, Any, Any],
    gateway: NamedDependency[Gateway],
    grant: NamedDependency[Grant],
) -> Response[ModelList]:
    """The models served, as far as the key may use them."""
    usable = [model for model in gateway.models() if grant.may_use(model.id)]
    models = ModelList(data=[_object(model) for model in usable])
    return identified(request, models)


@get("/models/{model_id:path}", opt=needs(), operation_class=described())
async def get_model(
    request: Request[Any, Any, Any],
    gateway: NamedDependency[Gateway],
    grant: NamedDependency[Grant],
    model_id: FromPath[str],
) -> Response[ModelObject]:
    """One model; its id may contain slashes."""
    wanted = model_id.lstrip("/")
    for model in gateway.models():
        if model.id in (wanted, model_id) and grant.may_use(model.id):
            return identified(request, _object(model))
    raise ModelNotFound(f"The model {cut(wanted)!r} does not exist.", param="model")


def _object(model: ModelInfo) -> ModelObject:
    return ModelObject(
        id=model.id,
        created=model.created,
        owned_by=model.owned_by,
        max_model_len=model.max_length,
    )
