//! Generates the JSON Schema of iteron's JSON-RPC messages from their types.

/// The schema as it is committed.
pub fn json_schema() -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(&iteron_protocol::rpc::rpc_schema())? + "\n")
}
