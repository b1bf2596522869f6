//! Requests of a client, which are drawn, and their bytes as torch's client sends them. They are written without the product's
//! code. Part of `client`.

use elastic_store::wire::Request;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// First byte and word of a client of torch.
const HELLO: [u8; 5] = [0, 0xCE, 0xF7, 0x85, 0x3C];

/// Keys of values, of numbers, of queues and of barriers.
pub(super) const VALUES: [&str; 5] = ["v0", "v1", "v2", "v3", "v4"];
const NUMBERS: [&str; 2] = ["n0", "n1"];
pub(super) const QUEUES: [&str; 2] = ["q0", "q1"];
pub(super) const BARRIERS: [&str; 2] = ["b0", "b1"];

/// Longest value of a seed with long values, and of another one.
const LONG_BYTES: usize = 1_500_000;
const SHORT_BYTES: usize = 40;

/// Most requests of one client.
const REQUESTS_MAX: usize = 12;

fn key(random: &mut ChaCha8Rng, of: &[&str]) -> Vec<u8> {
    of[random.random_range(0..of.len())].as_bytes().to_vec()
}

fn keys(random: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let count = random.random_range(1..4);
    (0..count)
        .map(|_| if random.random_bool(0.8) { key(random, &VALUES) } else { key(random, &QUEUES) })
        .collect()
}

fn value(random: &mut ChaCha8Rng, has_long: bool) -> Vec<u8> {
    let most = if has_long && random.random_bool(0.4) { LONG_BYTES } else { SHORT_BYTES };
    let length = random.random_range(0..most);
    let mut value = vec![random.random(); length];
    // Two values of one length differ where they begin, too.
    value.iter_mut().take(8).for_each(|byte| *byte = random.random());
    value
}

fn request(random: &mut ChaCha8Rng, has_long: bool) -> Request {
    match random.random_range(0..100) {
        0..18 => Request::Set { key: key(random, &VALUES), value: value(random, has_long) },
        18..38 => Request::Get { key: key(random, &VALUES) },
        38..46 => Request::Add { key: key(random, &NUMBERS), amount: random.random_range(-3..9) },
        46..58 => Request::Wait { keys: keys(random) },
        58..62 => Request::Check { keys: keys(random) },
        62..65 => Request::Delete { key: key(random, &VALUES) },
        65..69 => Request::Append { key: key(random, &VALUES), value: value(random, has_long) },
        69..73 => Request::MultiGet { keys: keys(random) },
        73..76 => {
            let count = random.random_range(1..4);
            let entry = |random: &mut ChaCha8Rng| (key(random, &VALUES), value(random, has_long));
            Request::MultiSet { entries: (0..count).map(|_| entry(random)).collect() }
        }
        76..80 => {
            let expected = if random.random_bool(0.5) { Vec::new() } else { b"1".to_vec() };
            let desired = random.random_range(1..4_u8).to_string().into_bytes();
            Request::CompareSet { key: key(random, &NUMBERS), expected, desired }
        }
        80..85 => Request::QueuePush { key: key(random, &QUEUES), value: value(random, has_long) },
        85..89 => Request::QueuePop { key: key(random, &QUEUES) },
        89..90 => Request::QueueLength { key: key(random, &QUEUES) },
        90..91 => Request::CountKeys,
        91..92 => Request::ListKeys,
        92..93 => Request::Ping { nonce: random.random() },
        93..98 => {
            Request::Barrier { key: key(random, &BARRIERS), world_size: random.random_range(1..4) }
        }
        // A number is added to a value that is none, which the store refuses.
        _ => Request::Add { key: key(random, &VALUES), amount: 1 },
    }
}

/// The requests of a client.
pub(super) fn draw(random: &mut ChaCha8Rng, has_long: bool) -> Vec<Request> {
    let mut requests = Vec::new();
    for _ in 0..random.random_range(1..REQUESTS_MAX) {
        let next = request(random, has_long);
        let is_wait = matches!(next, Request::Wait { .. });
        requests.push(next);
        if is_wait && random.random_bool(0.3) {
            requests.push(Request::CancelWait);
        }
    }
    requests
}

/// The requests of a client that ends every wait.
pub(super) fn rescue() -> Vec<Request> {
    let text = |key: &&str| key.as_bytes().to_vec();
    let sets = VALUES.iter().map(|it| Request::Set { key: text(it), value: b"set".to_vec() });
    let pushes = QUEUES.iter().map(|it| Request::QueuePush { key: text(it), value: Vec::new() });
    let meets = BARRIERS.iter().map(|it| Request::Barrier { key: text(it), world_size: 1 });
    sets.chain(pushes).chain(meets).collect()
}

/// The first bytes that a client sends.
pub(super) const fn hello() -> [u8; 5] {
    HELLO
}

/// A request as the client sends it.
pub(super) fn encode(request: &Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    let blob = |bytes: &mut Vec<u8>, blob: &[u8]| {
        bytes.extend((blob.len() as u64).to_le_bytes());
        bytes.extend_from_slice(blob);
    };
    let list = |bytes: &mut Vec<u8>, keys: &[Vec<u8>]| {
        bytes.extend((keys.len() as u64).to_le_bytes());
        keys.iter().for_each(|key| blob(bytes, key));
    };
    match request {
        Request::Set { key, value } => {
            bytes.push(1);
            blob(&mut bytes, key);
            blob(&mut bytes, value);
        }
        Request::CompareSet { key, expected, desired } => {
            bytes.push(2);
            [key, expected, desired].into_iter().for_each(|it| blob(&mut bytes, it));
        }
        Request::Get { key } => {
            bytes.push(3);
            blob(&mut bytes, key);
        }
        Request::Add { key, amount } => {
            bytes.push(4);
            blob(&mut bytes, key);
            bytes.extend(amount.to_le_bytes());
        }
        Request::Check { keys } => {
            bytes.push(5);
            list(&mut bytes, keys);
        }
        Request::Wait { keys } => {
            bytes.push(6);
            list(&mut bytes, keys);
        }
        Request::CountKeys => bytes.push(7),
        Request::Delete { key } => {
            bytes.push(8);
            blob(&mut bytes, key);
        }
        Request::Append { key, value } => {
            bytes.push(9);
            blob(&mut bytes, key);
            blob(&mut bytes, value);
        }
        Request::MultiGet { keys } => {
            bytes.push(10);
            list(&mut bytes, keys);
        }
        Request::MultiSet { entries } => {
            bytes.push(11);
            bytes.extend((entries.len() as u64).to_le_bytes());
            for (key, value) in entries {
                blob(&mut bytes, key);
                blob(&mut bytes, value);
            }
        }
        Request::CancelWait => bytes.push(12),
        Request::Ping { nonce } => {
            bytes.push(13);
            bytes.extend(nonce.to_le_bytes());
        }
        Request::QueuePush { key, value } => {
            bytes.push(14);
            blob(&mut bytes, key);
            blob(&mut bytes, value);
        }
        Request::QueuePop { key } => {
            bytes.push(15);
            blob(&mut bytes, key);
        }
        Request::QueueLength { key } => {
            bytes.push(16);
            blob(&mut bytes, key);
        }
        Request::ListKeys => bytes.push(17),
        Request::Barrier { key, world_size } => {
            bytes.push(18);
            blob(&mut bytes, key);
            bytes.extend(world_size.to_le_bytes());
        }
    }
    bytes
}

/// Whether a client reads an answer to this request.
pub(super) const fn is_answered(request: &Request) -> bool {
    !matches!(
        request,
        Request::Set { .. }
            | Request::MultiSet { .. }
            | Request::Append { .. }
            | Request::QueuePush { .. }
    )
}
