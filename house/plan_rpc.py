MOVES = {
 "rpc.call_messages": ["rpc.messages", "rpc.registry"],
 "rpc.endpoint": ["rpc.endpoint", "rpc.ending", "rpc.server", "rpc.default_endpoint"],
 "rpc.references": ["rpc.references", "rpc.owned_value", "rpc.rref", "rpc.values"],
 "rpc.exchange": ["rpc.exchange", "rpc.peers", "rpc.channel", "rpc.io_thread", "rpc.watch"],
 "rpc.calls": ["rpc.calls", "rpc.future", "rpc.pool", "rpc.remote_error"],
}
RENAMES = {"rpc.ending.finish": "finish_endpoint", "rpc.pool.waiting": "waiting_for_result", "rpc.messages.encode": "encode_message", "rpc.messages.HEAD": "MESSAGE_HEAD",
 "rpc.messages.decode_body": "decode_message_body", "rpc.messages.decode_head": "decode_message_head","rpc.values._decoder": "_value_decoder", "rpc.values.raw":"raw_value"}
