"""Decoders of request bodies, as the route table makes them."""

import msgspec

from topics.model.requests.records import ConfigRequest, DeleteRequest, DiffRequest

diff_decoder = msgspec.json.Decoder(DiffRequest)
delete_decoder = msgspec.json.Decoder(DeleteRequest)
config_decoder = msgspec.json.Decoder(ConfigRequest)
