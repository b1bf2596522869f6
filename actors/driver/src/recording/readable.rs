//! The JSON form of parts of the core's state. Maps become lists of pairs, since JSON has text keys only. Secrets are left
//! out: a recording never has the job's secrets, the keys of generations, or the program's arguments and environment. The
//! journal's own encoding stays the same. Used by the types of `core` and `journal` (serde's `with`).

use elastic_protocol::ProgramSpec;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A program without its arguments and environment.
fn bare(program: &ProgramSpec) -> ProgramSpec {
    let argv = program.argv.iter().take(1).cloned().collect();
    ProgramSpec { argv, environment: Vec::new() }
}

/// A command without its arguments.
fn bare_command(command: &str) -> String {
    command.split_whitespace().next().unwrap_or_default().to_owned()
}

/// A command, without its arguments.
pub(crate) mod command {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        command: &str,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.serialize_str(&bare_command(command)),
            false => serializer.serialize_str(command),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<String, D::Error> {
        String::deserialize(deserializer)
    }
}

/// A map as a list of pairs. In the journal's encoding both are the same bytes.
pub(crate) mod pairs {
    use std::collections::BTreeMap;

    use super::*;

    pub(crate) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// A number with fractions, bit for bit.
pub(crate) mod exact {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        number.to_bits().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits)
    }
}

/// The program, without its arguments and environment.
pub(crate) mod program {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        program: &ProgramSpec,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return bare(program).serialize(serializer);
        }
        program.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ProgramSpec, D::Error> {
        ProgramSpec::deserialize(deserializer)
    }
}

/// The job's secrets: none.
pub(crate) mod secrets {
    use super::*;
    use crate::journal::JobSecretsBytes;

    pub(crate) fn serialize<S: Serializer>(
        secrets: &JobSecretsBytes,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return JobSecretsBytes::default().serialize(serializer);
        }
        secrets.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<JobSecretsBytes, D::Error> {
        JobSecretsBytes::deserialize(deserializer)
    }
}

/// A table of a generation as the list of its members.
pub(crate) mod table {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use elastic_protocol::{Assignment, WorkerId};

    use super::*;

    pub(super) fn list(table: &Assignment) -> Vec<(WorkerId, SocketAddr)> {
        table.members().map(|member| (member.worker, member.data_address)).collect()
    }

    pub(crate) fn serialize<S: Serializer>(
        table: &Assignment,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        list(table).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<Assignment>, D::Error> {
        let members = Vec::<(WorkerId, SocketAddr)>::deserialize(deserializer)?;
        Ok(Arc::new(Assignment::new(members)))
    }
}

/// A formation without its key.
pub(crate) mod formation {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use elastic_protocol::messages::{Formation, FormationTable, GroupKey, JobShards, SyncPlan};
    use elastic_protocol::{Assignment, DataPlane, Stamp, Step, WorkerId};

    use super::*;

    /// A formation as it is written, without its key.
    #[derive(Deserialize, Serialize)]
    struct FormationWithoutKey {
        stamp: Stamp,
        members: Vec<(WorkerId, SocketAddr)>,
        sync: SyncPlan,
        step: Step,
        encrypts: bool,
        data_plane: DataPlane,
        #[serde(default)]
        shards: Option<u32>,
        #[serde(default)]
        shard_counts: Vec<u32>,
    }

    pub(crate) fn serialize<S: Serializer>(
        formation: &Formation,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return formation.serialize(serializer);
        }
        let Formation { stamp, table, sync, step, key: _, encrypts, data_plane, .. } = formation;
        let FormationTable::Full(assignment) = table else {
            return Err(serde::ser::Error::custom("a kept formation has its full table"));
        };
        let written = FormationWithoutKey {
            stamp: *stamp,
            members: table::list(assignment),
            sync: *sync,
            step: *step,
            encrypts: *encrypts,
            data_plane: *data_plane,
            shards: formation.shards.total(),
            shard_counts: formation.shards.counts().to_vec(),
        };
        written.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Formation, D::Error> {
        if !deserializer.is_human_readable() {
            return Formation::deserialize(deserializer);
        }
        let written = FormationWithoutKey::deserialize(deserializer)?;
        Ok(Formation {
            stamp: written.stamp,
            table: FormationTable::Full(Arc::new(Assignment::new(written.members))),
            sync: written.sync,
            step: written.step,
            key: GroupKey([0; 32]),
            encrypts: written.encrypts,
            data_plane: written.data_plane,
            shards: match (written.shards, written.shard_counts) {
                (None, _) => JobShards::Unsaid,
                (Some(total), counts) if counts.is_empty() => JobShards::Even(total),
                (Some(_), counts) => JobShards::Counted(counts),
            },
        })
    }
}

/// Encoded records of the journal, decoded.
pub(crate) mod records {
    use std::collections::VecDeque;

    use super::*;
    use crate::journal::JournalRecord;

    pub(crate) fn serialize<S: Serializer>(
        records: &VecDeque<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let decoded: Result<Vec<JournalRecord>, _> =
            records.iter().map(|bytes| JournalRecord::decode(bytes)).collect();
        decoded.map_err(serde::ser::Error::custom)?.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<VecDeque<Vec<u8>>, D::Error> {
        let records = Vec::<JournalRecord>::deserialize(deserializer)?;
        Ok(records.iter().map(JournalRecord::encode).collect())
    }
}

/// A message to a worker, without the key of its generation.
pub(crate) mod to_worker {
    use elastic_protocol::messages::{DriverToWorker, GroupKey};

    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        message: &DriverToWorker,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let DriverToWorker::Assign(formation) = message else {
            return message.serialize(serializer);
        };
        let mut formation = formation.clone();
        formation.key = GroupKey([0; 32]);
        DriverToWorker::Assign(formation).serialize(serializer)
    }
}

/// A message to an agent, without the program's arguments and environment.
pub(crate) mod to_agent {
    use elastic_protocol::messages::DriverToAgent;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        message: &DriverToAgent,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut message = message.clone();
        match &mut message {
            DriverToAgent::Welcome { program, .. } => *program = bare(program),
            DriverToAgent::Start { credential, .. } => credential.clear(),
            DriverToAgent::CheckHealth { command, .. } => *command = bare_command(command),
            _ => {}
        }
        message.serialize(serializer)
    }
}
