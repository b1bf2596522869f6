//! Names of a worker's output files, used by `plan`. No host name leads outside the folder, and no two workers
//! share a file.

use std::fmt::Write as _;

use elastic_protocol::WorkerId;
use xxhash_rust::xxh3::xxh3_128;

/// Longest escaped host name in a file name, in bytes. With slot, incarnation and extension the name stays
/// below the 255 bytes that file systems allow.
const HOST_BYTES_MAX: usize = 180;

/// Bytes that are kept of a longer host name, before its hash.
const HOST_BYTES_KEPT: usize = 140;

/// `<host>.<slot>.<incarnation>`, to which the stream's name is added.
///
/// ASCII letters, digits, `-`, `_` and inner `.` of the host name stay. Any other byte becomes `%` and two
/// hexadecimal digits. An escaped name longer than 180 bytes is cut, and `~` with the XXH3-128 hash of the
/// whole name is added.
pub fn file_stem(worker: &WorkerId) -> String {
    let host = escaped(worker.host.as_str());
    format!("{host}.{}.{}", worker.slot, worker.incarnation)
}

fn escaped(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for (index, byte) in name.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'_')
            || (byte == b'.' && index > 0);
        if plain {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    if escaped.len() > HOST_BYTES_MAX {
        escaped.truncate(HOST_BYTES_KEPT);
        let _ = write!(escaped, "~{:032x}", xxh3_128(name.as_bytes()));
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use elastic_protocol::{HostName, Incarnation};
    use proptest::prelude::*;

    use super::*;

    fn stem(host: &str, slot: u32, incarnation: u64) -> String {
        let host = HostName::new(host).expect("a valid name");
        file_stem(&WorkerId { host, slot, incarnation: Incarnation(incarnation) })
    }

    #[test]
    fn x_20_names_stay_in_the_folder() {
        assert_eq!(stem("node-1.example.org", 3, 7), "node-1.example.org.3.7");
        assert_eq!(stem("../x", 0, 1), "%2E.%2Fx.0.1");
        assert_eq!(stem("..", 0, 1), "%2E..0.1");
        assert_eq!(stem("a b%ä", 0, 1), "a%20b%25%C3%A4.0.1");
    }

    #[test]
    fn x_20_long_names_stay_short_and_apart() {
        let name = "ä".repeat(127);
        let (one, other) = (stem(&format!("{name}a"), 0, 1), stem(&format!("{name}b"), 0, 1));
        assert!(one.len() < 200, "{one}");
        assert_ne!(one, other);
    }

    fn host() -> impl Strategy<Value = String> {
        "[a./%~ ä\\\\0-9]{1,80}".prop_filter("a valid name", |name| HostName::new(name).is_ok())
    }

    proptest! {
        #[test]
        fn x_20_one_file_for_one_worker(
            one in host(), other in host(),
            slots in (0..3_u32, 0..3_u32), lives in (0..3_u64, 0..3_u64),
        ) {
            let stems = (stem(&one, slots.0, lives.0), stem(&other, slots.1, lives.1));
            let same = one.trim() == other.trim() && slots.0 == slots.1 && lives.0 == lives.1;
            prop_assert_eq!(stems.0 == stems.1, same);
            let mut parts = Path::new(&stems.0).components();
            prop_assert!(matches!(parts.next(), Some(Component::Normal(_))));
            prop_assert_eq!(parts.next(), None);
            prop_assert!(stems.0.len() < 240);
        }
    }
}
