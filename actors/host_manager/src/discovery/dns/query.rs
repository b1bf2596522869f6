//! A single query to one name server, as a message of RFC 1035 over TCP. Called by `resolver`. Every server has
//! to offer TCP (RFC 7766). Over TCP an answer is never truncated, and comes from the server that was asked.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The address family of a query.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Family {
    V4,
    V6,
}

/// Errors of a query.
#[derive(Debug, thiserror::Error)]
pub(super) enum QueryError {
    #[error("{server} cannot be asked")]
    Connection {
        server: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("{server} answers with {code}")]
    Refused { server: SocketAddr, code: String },
    #[error("{server} answers with what is no answer")]
    Malformed { server: SocketAddr },
}

/// Queries a server for the addresses of a name. A name that does not exist has none.
pub(super) async fn ask(
    server: SocketAddr,
    id: u16,
    name: &str,
    family: Family,
) -> Result<BTreeSet<IpAddr>, QueryError> {
    let malformed = || QueryError::Malformed { server };
    let question = question(id, name, family).ok_or_else(malformed)?;
    let answer = exchange(server, &question).await;
    let answer = answer.map_err(|source| QueryError::Connection { server, source })?;
    let packet = Packet::parse(&answer).map_err(|_| malformed())?;
    if packet.id() != id || !packet.has_flags(PacketFlag::RESPONSE) {
        return Err(malformed());
    }
    match packet.rcode() {
        RCODE::NoError => Ok(addresses(&packet, family)),
        RCODE::NameError => Ok(BTreeSet::new()),
        code => Err(QueryError::Refused { server, code: format!("{code:?}") }),
    }
}

fn question(id: u16, name: &str, family: Family) -> Option<Vec<u8>> {
    let kind = match family {
        Family::V4 => TYPE::A,
        Family::V6 => TYPE::AAAA,
    };
    let name = Name::new(name).ok()?;
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(name, QTYPE::TYPE(kind), QCLASS::CLASS(CLASS::IN), false));
    packet.build_bytes_vec().ok()
}

/// Sends a question and receives the answer; each message is preceded by its length in two bytes.
async fn exchange(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], question].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// The addresses in an answer, including those of aliases, which are in the same answer.
fn addresses(packet: &Packet<'_>, family: Family) -> BTreeSet<IpAddr> {
    let found = packet.answers.iter().filter_map(|record| match (&record.rdata, family) {
        (RData::A(a), Family::V4) => Some(Ipv4Addr::from(a.address).into()),
        (RData::AAAA(aaaa), Family::V6) => Some(Ipv6Addr::from(aaaa.address).into()),
        _ => None,
    });
    found.collect()
}
