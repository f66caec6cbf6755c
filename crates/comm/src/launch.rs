//! Which rank of how many a cluster's launcher says that this process is.
//!
//! The one place that reads variables of the environment, and all that they can do:
//! say who this process is and where rank 0 is found. The first launcher that
//! speaks is believed; the others must say the same.
//!
//! ```text
//! torchrun   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
//! Open MPI   OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE
//! MPICH      PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
//! SLURM      SLURM_PROCID SLURM_NTASKS SLURM_LOCALID, in a step of `srun`
//! where      MASTER_ADDR MASTER_PORT; must be there for torchrun's variables
//! ```

use crate::words::fnv;
use crate::{LaunchError, World};

/// Where the ranks of a job meet, and which job that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// A name or address of rank 0's host.
    pub address: String,
    /// The port that rank 0 listens on.
    pub port: u16,
    /// What tells this job from another that meets at the same place.
    pub token: String,
}

/// What a launcher says of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The launcher, for people.
    pub launcher: &'static str,
    /// Which rank, and of how many.
    pub world: World,
    /// This rank's number among those of its host.
    pub local_rank: Option<usize>,
    /// Where the ranks meet.
    pub meeting: Meeting,
}

/// The variables of one launcher.
struct Family {
    launcher: &'static str,
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: &'static str,
    /// What is different for each job.
    job: &'static str,
    /// The variable without which the others do not count.
    only_with: Option<&'static str>,
}

const FAMILIES: [Family; 4] = [
    Family {
        launcher: "torchrun",
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_world_size: "LOCAL_WORLD_SIZE",
        job: TORCHRUN_JOB,
        only_with: None,
    },
    Family {
        launcher: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        job: "PMIX_NAMESPACE",
        only_with: None,
    },
    Family {
        launcher: "MPICH",
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_world_size: "MPI_LOCALNRANKS",
        job: "PMI_JOBID",
        only_with: None,
    },
    Family {
        launcher: "SLURM",
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_world_size: "SLURM_NTASKS_PER_NODE",
        job: "SLURM_JOB_ID",
        // A batch script is rank 0 of as many, and starts none of the others.
        only_with: Some(SLURM_HOSTS),
    },
];

const SLURM_HOSTS: &str = "SLURM_STEP_NODELIST";
const TORCHRUN_JOB: &str = "TORCHELASTIC_RUN_ID";
/// Set where torchrun itself listens on the port of the job.
const TORCHRUN_LISTENS: &str = "TORCHELASTIC_USE_AGENT_STORE";
const ADDRESS: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";

/// Where ports for jobs begin that name none, below those that systems give to
/// outgoing connections, and how many there are.
const FIRST_PORT: u16 = 20_000;
const NUM_PORTS: u64 = 10_000;

/// A number that a variable holds.
#[derive(Clone, Copy)]
struct Number {
    variable: &'static str,
    value: usize,
}

/// What a launcher says of this process, if one has started it.
pub fn launch_of_this_process() -> Result<Option<Launch>, LaunchError> {
    read_launch(&|name| std::env::var(name).ok())
}

/// What a launcher says in variables that `variable` looks up.
fn read_launch(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launch>, LaunchError> {
    let mut said = Vec::new();
    for family in &FAMILIES {
        let counts = family.only_with.is_none_or(|name| variable(name).is_some());
        if let Some(numbers) = family.numbers(variable).filter(|_| counts) {
            said.push((family, numbers?));
        }
    }
    let Some(&(family, numbers)) = said.first() else {
        return Ok(None);
    };
    // Under torchrun the others speak of torchrun's own processes.
    if variable(TORCHRUN_JOB).is_none() {
        for (_, others) in &said[1..] {
            for (number, other) in numbers.iter().zip(others) {
                agree(*number, *other)?;
            }
        }
        // A PMIx server knows the rank alone.
        if let Some(rank) = number(variable, "PMIX_RANK") {
            agree(numbers[0], rank?)?;
        }
    }
    let world = family.world(numbers)?;
    let local = family.local(variable, world)?;
    Ok(Some(Launch {
        launcher: family.launcher,
        world,
        local_rank: local.map(|local| local.0),
        meeting: family.meeting(variable, world, local.and_then(|local| local.1))?,
    }))
}

impl Launch {
    /// An error unless a setting for the number of ranks is what the launcher says.
    pub fn agrees_with(&self, setting: &str, num_ranks: usize) -> Result<(), LaunchError> {
        let world_size = self.world.world_size();
        if num_ranks == world_size {
            return Ok(());
        }
        Err(LaunchError::Contradiction {
            one: format!("{setting} is {num_ranks}"),
            other: format!("{} has started {world_size} ranks", self.launcher),
        })
    }
}

impl Family {
    /// Rank and world size; none where neither is there.
    fn numbers(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Result<[Number; 2], LaunchError>> {
        let rank = number(variable, self.rank);
        let world_size = number(variable, self.world_size);
        let missing = |variable, because| Err(LaunchError::Missing { variable, because });
        Some(match (rank, world_size) {
            (Some(rank), Some(world_size)) => {
                rank.and_then(|rank| world_size.map(|world_size| [rank, world_size]))
            }
            (Some(_), None) => missing(self.world_size, self.rank),
            (None, Some(_)) => missing(self.rank, self.world_size),
            (None, None) => {
                variable(self.local_rank)?;
                missing(self.rank, self.local_rank)
            }
        })
    }

    fn world(&self, [rank, world_size]: [Number; 2]) -> Result<World, LaunchError> {
        if world_size.value == 0 {
            return Err(LaunchError::BadValue {
                variable: self.world_size,
                value: "0".to_owned(),
                expected: "at least 1".to_owned(),
            });
        }
        World::new(rank.value, world_size.value).map_err(|_| LaunchError::BadValue {
            variable: self.rank,
            value: rank.value.to_string(),
            expected: format!(
                "less than {}, which is {}",
                self.world_size, world_size.value
            ),
        })
    }

    /// The number among the ranks of this host and, if it is said, of how many.
    fn local(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
        world: World,
    ) -> Result<Option<(usize, Option<usize>)>, LaunchError> {
        let Some(rank) = number(variable, self.local_rank).transpose()? else {
            return Ok(None);
        };
        // SLURM writes `4(x2)` for two hosts, which says no more than the hosts do.
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let size = variable(self.local_world_size).is_some_and(|text| is_plain(&text));
        let size = size.then(|| number(variable, self.local_world_size));
        let size = size.flatten().transpose()?.map(|size| size.value);
        let limit = size.unwrap_or(world.world_size());
        if rank.value >= limit {
            let limiting = size.map_or(self.world_size, |_| self.local_world_size);
            return Err(LaunchError::BadValue {
                variable: self.local_rank,
                value: rank.value.to_string(),
                expected: format!("less than {limiting}, which is {limit}"),
            });
        }
        Ok(Some((rank.value, size)))
    }

    fn meeting(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
        world: World,
        local_world_size: Option<usize>,
    ) -> Result<Meeting, LaunchError> {
        let job = variable(self.job).unwrap_or_default();
        let token = format!("{} {job}", self.launcher);
        let is_torchrun = self.job == TORCHRUN_JOB;
        let missing = |variable| LaunchError::Missing {
            variable,
            because: self.rank,
        };
        let address = match variable(ADDRESS).filter(|address| !address.trim().is_empty()) {
            Some(address) => address.trim().to_owned(),
            None if is_torchrun && world.has_peers() => return Err(missing(ADDRESS)),
            None if local_world_size.is_none_or(|size| size == world.world_size()) => {
                let hosts = variable(SLURM_HOSTS).filter(|_| self.only_with.is_some());
                hosts.map_or_else(|| "127.0.0.1".to_owned(), |hosts| first_host(&hosts))
            }
            None => match variable(SLURM_HOSTS) {
                Some(hosts) => first_host(&hosts),
                None => return Err(missing(ADDRESS)),
            },
        };
        let given = variable(PORT).map(|text| port(&text)).transpose()?;
        let port = match given {
            Some(port) if variable(TORCHRUN_LISTENS).as_deref() != Some("True") => port,
            None if is_torchrun && world.has_peers() => return Err(missing(PORT)),
            given => port_of(&format!("{token} {given:?}")),
        };
        Ok(Meeting {
            address,
            port,
            token,
        })
    }
}

/// The number that a variable holds, if it is there.
fn number(
    variable: &dyn Fn(&str) -> Option<String>,
    name: &'static str,
) -> Option<Result<Number, LaunchError>> {
    let text = variable(name)?;
    let value = text.parse().map_err(|_| LaunchError::BadValue {
        variable: name,
        value: text,
        expected: "a whole number from 0".to_owned(),
    });
    Some(value.map(|value| Number {
        variable: name,
        value,
    }))
}

fn agree(number: Number, other: Number) -> Result<(), LaunchError> {
    if number.value == other.value {
        return Ok(());
    }
    Err(LaunchError::Contradiction {
        one: format!("{} is {}", number.variable, number.value),
        other: format!("{} is {}", other.variable, other.value),
    })
}

fn port(text: &str) -> Result<u16, LaunchError> {
    let port = text.parse().ok().filter(|&port| port > 0);
    port.ok_or_else(|| LaunchError::BadValue {
        variable: PORT,
        value: text.to_owned(),
        expected: "a port from 1 to 65535".to_owned(),
    })
}

/// A port that follows from a job.
fn port_of(job: &str) -> u16 {
    let offset = fnv(job.bytes()) % NUM_PORTS;
    FIRST_PORT + u16::try_from(offset).expect("there are fewer ports")
}

/// The first of SLURM's list of hosts, such as `node[07-12,20],login`.
fn first_host(hosts: &str) -> String {
    let end = hosts.find([',', '[']).unwrap_or(hosts.len());
    let (prefix, rest) = hosts.split_at(end);
    let Some((numbers, rest)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return prefix.to_owned();
    };
    let number = numbers.split(['-', ',']).next().unwrap_or_default();
    let suffix = rest.split(',').next().unwrap_or_default();
    format!("{prefix}{number}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Launch>, String> {
        let find = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        read_launch(&find).map_err(|error| error.to_string())
    }

    const TORCHRUN: [(&str, &str); 5] = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29500"),
    ];

    #[test]
    fn every_launcher_is_understood() {
        let launch = read(&TORCHRUN).unwrap().unwrap();
        assert_eq!(launch.world, World::new(1, 2).unwrap());
        assert_eq!(launch.local_rank, Some(1));
        assert_eq!(launch.meeting.address, "10.0.0.1");
        assert_eq!(launch.meeting.port, 29500);

        let launch = read(&[
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "prterun-host-77@1"),
            ("PMIX_RANK", "2"),
        ]);
        let launch = launch.unwrap().unwrap();
        assert_eq!((launch.launcher, launch.world.rank()), ("Open MPI", 2));
        assert_eq!(launch.meeting.address, "127.0.0.1");
        assert!((20_000..30_000).contains(&launch.meeting.port));

        let launch = read(&[("PMI_RANK", "0"), ("PMI_SIZE", "3")]);
        assert_eq!(launch.unwrap().unwrap().launcher, "MPICH");

        let launch = read(&[
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NTASKS_PER_NODE", "4"),
            ("SLURM_STEP_NODELIST", "node[07-08],login"),
            ("SLURM_JOB_ID", "991"),
        ]);
        let launch = launch.unwrap().unwrap();
        assert_eq!((launch.launcher, launch.world.rank()), ("SLURM", 5));
        assert_eq!(launch.meeting.address, "node07");
    }

    /// Case LA07.
    #[test]
    fn half_an_environment_is_refused_by_the_name_of_what_is_wrong() {
        let text = include_str!("../../../testdata/cases/LA07/env.json");
        let cases: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
        assert_eq!(cases.len(), 14);
        for case in &cases {
            let variables = case["env"].as_object().unwrap().iter();
            let variables: Vec<_> = variables
                .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
                .collect();
            let name = &case["name"];
            match (read(&variables), case["verdict"].as_str().unwrap()) {
                (Ok(launch), "accept" | "accept or error") => assert!(launch.is_some(), "{name}"),
                (Ok(launch), "accept as world 1") => assert!(launch.is_none(), "{name}"),
                (Err(error), "error" | "accept or error") => {
                    for word in case["must_mention"].as_array().unwrap() {
                        let word = word.as_str().unwrap();
                        assert!(error.contains(word), "{name}: {error}");
                    }
                }
                (found, verdict) => panic!("{name}: {verdict}, found {found:?}"),
            }
        }
    }

    #[test]
    fn a_batch_script_of_slurm_is_no_rank() {
        let script = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")];
        assert_eq!(read(&script).unwrap(), None);
    }

    #[test]
    fn launchers_that_say_different_things_are_told_apart() {
        let slurm = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_STEP_NODELIST", "a,b"),
        ];
        let both = [&TORCHRUN[..], &slurm].concat();
        assert_eq!(
            read(&both).unwrap_err(),
            "the launch contradicts itself: RANK is 1, but SLURM_PROCID is 0"
        );
        // One torchrun a host, started by srun.
        let nested = [&both[..], &[("TORCHELASTIC_RUN_ID", "none")]].concat();
        assert_eq!(read(&nested).unwrap().unwrap().launcher, "torchrun");
        // Its own store listens on the port of the job.
        let busy = [&nested[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_ne!(read(&busy).unwrap().unwrap().meeting.port, 29500);
        let pmix = [&TORCHRUN[..], &[("PMIX_RANK", "0")]].concat();
        assert!(read(&pmix).unwrap_err().contains("PMIX_RANK is 0"));
    }

    #[test]
    fn a_local_rank_is_one_of_its_host() {
        let mut launch = TORCHRUN.to_vec();
        launch.push(("LOCAL_WORLD_SIZE", "1"));
        assert_eq!(
            read(&launch).unwrap_err(),
            "LOCAL_RANK is `1`, expected less than LOCAL_WORLD_SIZE, which is 1"
        );
        let alone = read(&[("LOCAL_RANK", "0")]).unwrap_err();
        assert_eq!(alone, "LOCAL_RANK is set, but RANK is not");
    }

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("alpha", "alpha"),
            ("alpha,beta", "alpha"),
            ("node[07-12,20],login", "node07"),
            ("node[3,5]", "node3"),
            ("rack[1-2]-ib,x", "rack1-ib"),
        ] {
            assert_eq!(first_host(list), first, "{list}");
        }
    }
}
