//! The JSON messages of etcd that are used here, after etcd's `rpc.proto` and the rules of its JSON gateway.
//! Used by the other files of this folder. Bytes are base64, 64-bit numbers are strings, and default values are
//! left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Bytes, as base64.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Base64Bytes(pub(super) Vec<u8>);

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map(Self).map_err(D::Error::custom)
    }
}

impl From<&str> for Base64Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

/// A 64-bit number, as a string.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Number(pub(super) i64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// Reads a key, or all keys from `key` to `range_end`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct RangeRequest {
    pub(super) key: Base64Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) range_end: Option<Base64Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) revision: Option<Number>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResponseHeader {
    pub(super) revision: Number,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    pub(super) key: Base64Bytes,
    pub(super) value: Base64Bytes,
    pub(super) create_revision: Number,
    pub(super) mod_revision: Number,
    pub(super) lease: Number,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeResponse {
    pub(super) header: ResponseHeader,
    pub(super) kvs: Vec<KeyValue>,
    pub(super) more: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PutRequest {
    pub(super) key: Base64Bytes,
    pub(super) value: Base64Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<Number>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) ignore_lease: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DeleteRangeRequest {
    pub(super) key: Base64Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) range_end: Option<Base64Bytes>,
}

/// A condition: the key was created, or changed last, at this revision, or later. Revision 0: the key does not exist.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Compare {
    result: &'static str,
    key: Base64Bytes,
    #[serde(flatten)]
    target: Target,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "target", rename_all = "UPPERCASE")]
enum Target {
    Create { create_revision: Number },
    Mod { mod_revision: Number },
}

impl Compare {
    pub(super) fn created_at(key: &str, revision: Number) -> Self {
        let target = Target::Create { create_revision: revision };
        Self { result: "EQUAL", key: key.into(), target }
    }

    pub(super) fn modified_at(key: &str, revision: Number) -> Self {
        let target = Target::Mod { mod_revision: revision };
        Self { result: "EQUAL", key: key.into(), target }
    }

    pub(super) fn absent(key: &str) -> Self {
        Self::created_at(key, Number(0))
    }

    pub(super) fn present(key: &str) -> Self {
        Self { result: "GREATER", ..Self::absent(key) }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) enum EtcdOperation {
    #[serde(rename = "request_range")]
    Range(RangeRequest),
    #[serde(rename = "request_put")]
    Put(PutRequest),
    #[serde(rename = "request_delete_range")]
    DeleteRange(DeleteRangeRequest),
}

impl EtcdOperation {
    pub(super) fn put(key: &str, value: Vec<u8>) -> Self {
        Self::Put(PutRequest {
            key: key.into(),
            value: Base64Bytes(value),
            lease: None,
            ignore_lease: false,
        })
    }

    pub(super) fn put_leased(key: &str, value: Vec<u8>, lease: Number) -> Self {
        Self::Put(PutRequest {
            key: key.into(),
            value: Base64Bytes(value),
            lease: Some(lease),
            ignore_lease: false,
        })
    }

    /// Changes the value of a key, which must be there, and leaves its lease as it is.
    pub(super) fn change(key: &str, value: Vec<u8>) -> Self {
        Self::Put(PutRequest {
            key: key.into(),
            value: Base64Bytes(value),
            lease: None,
            ignore_lease: true,
        })
    }

    pub(super) fn delete(key: &str) -> Self {
        Self::DeleteRange(DeleteRangeRequest { key: key.into(), range_end: None })
    }

    /// All keys from `first` to before `end`.
    pub(super) fn delete_from(first: &str, end: &str) -> Self {
        let range_end = Some(end.into());
        Self::DeleteRange(DeleteRangeRequest { key: first.into(), range_end })
    }

    pub(super) fn get(key: &str) -> Self {
        Self::Range(RangeRequest { key: key.into(), ..RangeRequest::default() })
    }

    /// Reads all keys with this prefix, `limit` at most.
    pub(super) fn get_below(prefix: &str, limit: i64) -> Self {
        Self::Range(RangeRequest {
            key: prefix.into(),
            range_end: Some(end_of(prefix).as_str().into()),
            limit: Some(Number(limit)),
            revision: None,
        })
    }
}

/// A transaction: carries out `success` if all of `compare` hold, else `failure`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct TxnRequest {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<EtcdOperation>,
    pub(super) failure: Vec<EtcdOperation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TxnResponse {
    pub(super) header: ResponseHeader,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<OperationResponse>,
}

impl TxnResponse {
    /// All keys that the first request for keys has found.
    pub(super) fn into_first_range(self) -> Vec<KeyValue> {
        let mut ranges = self.responses.into_iter().filter_map(|response| response.response_range);
        ranges.next().map(|range| range.kvs).unwrap_or_default()
    }

    /// The value of each requested key, in the order of the request.
    pub(super) fn into_key_values(self) -> impl Iterator<Item = Option<KeyValue>> {
        let ranges = self.responses.into_iter().filter_map(|response| response.response_range);
        ranges.map(|range| range.kvs.into_iter().next())
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OperationResponse {
    pub(super) response_range: Option<RangeResponse>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LeaseGrantRequest {
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseGrantResponse {
    #[serde(rename = "ID")]
    pub(super) id: Number,
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LeaseRequest {
    #[serde(rename = "ID")]
    pub(super) id: Number,
}

/// A message of the stream that answers keep-alives.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LeaseKeepAliveResponse {
    pub(super) result: LeaseGrantResponse,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Nothing {}

/// The first key after all keys with this prefix.
pub(super) fn end_of(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    // Prefixes here end in `/`, which has a successor.
    let last = end.pop().map_or('\u{1}', |last| char::from_u32(last as u32 + 1).unwrap_or(last));
    end.push(last);
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_as_etcd_wants_them() {
        let request = TxnRequest {
            compare: vec![Compare::absent("a")],
            success: vec![EtcdOperation::put_leased("a", b"x".to_vec(), Number(7))],
            failure: vec![EtcdOperation::get("a")],
        };
        let json = serde_json::to_value(&request).expect("plain data");
        let expected = serde_json::json!({
            "compare": [{"result": "EQUAL", "target": "CREATE", "key": "YQ==", "create_revision": "0"}],
            "success": [{"request_put": {"key": "YQ==", "value": "eA==", "lease": "7"}}],
            "failure": [{"request_range": {"key": "YQ=="}}],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn responses_may_leave_out_what_is_zero() {
        let text = r#"{"header":{"revision":"12"},"responses":[{"response_range":{"kvs":[{"key":"YQ=="}]}}]}"#;
        let response: TxnResponse = serde_json::from_str(text).expect("as etcd prints it");
        assert!(!response.succeeded);
        assert_eq!(response.header.revision, Number(12));
        let range = response.responses[0].response_range.as_ref().expect("a range was asked for");
        assert_eq!(range.kvs[0].key, Base64Bytes::from("a"));
    }

    #[test]
    fn the_end_of_a_prefix_is_after_all_its_keys() {
        assert!("a/record/999" < end_of("a/record/").as_str());
        assert!("a/snapshot/0" > end_of("a/record/").as_str());
    }
}
