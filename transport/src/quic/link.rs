//! [`QuicLink`]: one connection that carries a session, and its tasks. Each conversation has a stream and a
//! writer of its own in each direction (TR-3).

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use elastic_protocol::NodeId;
use elastic_runtime::session::SessionError;
use elastic_runtime::transport::Conversation;
use quinn::{Connection, ReadError, ReadExactError, RecvStream, SendStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::peers::{CloseCode, LinkId};
use crate::quic::closing::close;
use crate::quic::links::QuicLinks;
use crate::quic::settings::ACK_DELAY;
use crate::quic::wire::{
    ACK_BYTES, FrameDecoder, KIND_BYTES, StreamDecodeError, StreamKind, decode_ack, encode_ack,
    frame_header,
};

/// Priorities with which quinn serves streams: control, then acknowledgements, then bulk.
const CONTROL_PRIORITY: i32 = 2;
const ACKS_PRIORITY: i32 = 1;
const BULK_PRIORITY: i32 = 0;

/// Bytes taken from a stream at a time.
const READ_BYTES: usize = 64 << 10;

pub(crate) struct QuicLink {
    id: LinkId,
    peer: NodeId,
    /// Number of received datagrams at the last look.
    received: u64,
    pub(crate) connection: Connection,
    /// Signals that an acknowledgement is due soon.
    acks_due: Rc<Notify>,
    /// Signals that an acknowledgement is due at once.
    acks_now: Rc<Notify>,
    links: Rc<QuicLinks>,
    writers: BTreeMap<Conversation, Rc<Notify>>,
    tasks: JoinSet<()>,
}

impl QuicLink {
    /// Starts the tasks. They end with the link.
    pub(crate) fn start(
        links: &Rc<QuicLinks>,
        id: LinkId,
        peer: &NodeId,
        connection: &Connection,
    ) -> Self {
        let mut link = Self {
            id,
            peer: peer.clone(),
            received: 0,
            connection: connection.clone(),
            acks_due: Rc::default(),
            acks_now: Rc::default(),
            links: Rc::clone(links),
            writers: BTreeMap::new(),
            tasks: JoinSet::new(),
        };
        let (acks_due, acks_now) = (Rc::clone(&link.acks_due), Rc::clone(&link.acks_now));
        link.tasks.spawn_local(watch(Rc::clone(links), id, connection.clone()));
        let accept = accept(Rc::clone(links), id, peer.clone(), connection.clone());
        link.tasks.spawn_local(accept);
        let acks = write_acks(Rc::clone(links), id, connection.clone(), acks_due, acks_now);
        link.tasks.spawn_local(acks);
        link
    }

    /// The node at the other end.
    pub(crate) fn peer(&self) -> &NodeId {
        &self.peer
    }

    /// Whether a datagram has arrived since the last look.
    pub(crate) fn was_heard(&mut self) -> bool {
        let received = self.connection.stats().udp_rx.datagrams;
        received != std::mem::replace(&mut self.received, received)
    }

    /// Signals that an acknowledgement is due: at once, or soon, together with further ones.
    pub(crate) fn acknowledge(&self, at_once: bool) {
        self.acks_due.notify_one();
        if at_once {
            self.acks_now.notify_one();
        }
    }

    /// Signals that there is a frame to write in this conversation.
    pub(crate) fn wake(&mut self, conversation: Conversation) {
        if let Some(writer) = self.writers.get(&conversation) {
            writer.notify_one();
            return;
        }
        let wake = Rc::new(Notify::new());
        self.writers.insert(conversation, Rc::clone(&wake));
        let (links, id) = (Rc::clone(&self.links), self.id);
        self.tasks.spawn_local(write_frames(
            links,
            id,
            self.connection.clone(),
            conversation,
            wake,
        ));
    }
}

async fn watch(links: Rc<QuicLinks>, id: LinkId, connection: Connection) {
    let error = connection.closed().await;
    links.handle_end(id, &error);
}

async fn open(connection: &Connection, kind: StreamKind) -> Option<SendStream> {
    let mut stream = connection.open_uni().await.ok()?;
    let priority = match kind {
        StreamKind::Frames(Conversation::Control) => CONTROL_PRIORITY,
        StreamKind::Frames(Conversation::Bulk(_)) => BULK_PRIORITY,
        StreamKind::Acks => ACKS_PRIORITY,
    };
    stream.set_priority(priority).ok()?;
    stream.write_all(&kind.encode()).await.ok()?;
    Some(stream)
}

/// Ends when the connection does; frames that it could not write stay in the session.
async fn write_frames(
    links: Rc<QuicLinks>,
    id: LinkId,
    connection: Connection,
    conversation: Conversation,
    wake: Rc<Notify>,
) {
    let Some(mut stream) = open(&connection, StreamKind::Frames(conversation)).await else {
        return;
    };
    loop {
        match links.next_frame(id, conversation) {
            Err(_detached) => return,
            Ok(None) => wake.notified().await,
            Ok(Some(transmit)) => {
                let header = frame_header(transmit.sequence, transmit.frame.len());
                let mut chunks = [Bytes::copy_from_slice(&header), transmit.frame];
                if stream.write_all_chunks(&mut chunks).await.is_err() {
                    return;
                }
                links.handle_written(id);
            }
        }
    }
}

async fn write_acks(
    links: Rc<QuicLinks>,
    id: LinkId,
    connection: Connection,
    due: Rc<Notify>,
    now: Rc<Notify>,
) {
    let Some(mut stream) = open(&connection, StreamKind::Acks).await else { return };
    loop {
        due.notified().await;
        // Waits a little for further acknowledgements. It does not matter which of the two ended the wait.
        drop(tokio::time::timeout(ACK_DELAY, now.notified()).await);
        loop {
            match links.next_ack(id) {
                Err(_detached) => return,
                Ok(None) => break,
                Ok(Some(ack)) => {
                    if stream.write_all(&encode_ack(ack)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Reason for which a stream of the other end failed.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    /// The connection has ended, or the other end reset the stream; others handle that.
    #[error("the stream ended")]
    Ended,
    #[error(transparent)]
    Wire(#[from] StreamDecodeError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl From<ReadError> for StreamError {
    fn from(_: ReadError) -> Self {
        Self::Ended
    }
}

impl From<ReadExactError> for StreamError {
    fn from(_: ReadExactError) -> Self {
        Self::Ended
    }
}

async fn accept(links: Rc<QuicLinks>, id: LinkId, peer: NodeId, connection: Connection) {
    let mut readers = JoinSet::new();
    while let Ok(stream) = connection.accept_uni().await {
        while readers.try_join_next().is_some() {}
        let (links, peer) = (Rc::clone(&links), peer.clone());
        readers.spawn_local(read(links, id, peer, connection.clone(), stream));
    }
    // The readers drain the received data, and end with the connection.
    while readers.join_next().await.is_some() {}
}

async fn read(
    links: Rc<QuicLinks>,
    id: LinkId,
    peer: NodeId,
    connection: Connection,
    mut stream: RecvStream,
) {
    match read_stream(&links, id, &mut stream).await {
        Ok(()) | Err(StreamError::Ended) => {}
        Err(error) => {
            tracing::warn!(%peer, %error, "connection broken off");
            close(&connection, CloseCode::Broken, &error.to_string());
            // When this end closes the connection, `watch` treats it like any other end.
        }
    }
}

async fn read_stream(
    links: &QuicLinks,
    id: LinkId,
    stream: &mut RecvStream,
) -> Result<(), StreamError> {
    let mut kind = [0; KIND_BYTES];
    stream.read_exact(&mut kind).await?;
    match StreamKind::decode(kind)? {
        StreamKind::Acks => loop {
            let mut ack = [0; ACK_BYTES];
            stream.read_exact(&mut ack).await?;
            links.handle_ack(id, decode_ack(ack)?)?;
        },
        StreamKind::Frames(conversation) => {
            let mut decoder = FrameDecoder::default();
            while let Some(chunk) = stream.read_chunk(READ_BYTES, true).await? {
                decoder.push(chunk.bytes);
                while let Some((sequence, frame)) = decoder.next_frame()? {
                    links.handle_frame(id, conversation, sequence, frame)?;
                }
            }
            Ok(())
        }
    }
}
