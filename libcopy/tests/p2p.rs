// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between the ranks of a team: without MPI, between real processes, against what a list
//! of all messages says.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use libcopy::datatype::{Datatype, Layout, Named};
use libcopy::{
    ANY_SOURCE, ANY_TAG, Error, RecvBuffer, Result, SendBuffer, Status, Team, TeamKey, team,
};

mod layouts;

use layouts::{Random, layout, mix};

/// What a rank does; `LIBCOPY_TEST` says which.
const SCRIPT: &str = "LIBCOPY_TEST";

fn run(size: usize, script: &str, transport: &str) -> Vec<std::process::ExitStatus> {
    let program = std::env::current_exe().unwrap();
    team::launch(size, |_| {
        let mut command = Command::new(&program);
        command
            .args(["--exact", "a_rank", "--nocapture", "--quiet"])
            .env(SCRIPT, script)
            .env("LIBCOPY_PROFILE", "none")
            .stdout(std::process::Stdio::null());
        if !transport.is_empty() {
            command.env("LIBCOPY_TRANSPORT", transport);
        }
        command
    })
    .unwrap()
}

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn a_rank() {
    let Ok(script) = std::env::var(SCRIPT) else {
        return;
    };
    let words: Vec<u64> = script
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect();
    let [seed, rounds, victim] = words[..] else {
        panic!("no script {script}");
    };
    storm(seed, rounds as usize, victim as usize);
}

/// Runs `work` as each of `size` ranks, which are threads.
fn threads(size: usize, work: impl Fn(&mut Team) + Send + Sync) {
    let key = TeamKey::random().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..size {
            let work = &work;
            scope.spawn(move || work(&mut Team::join(&key, rank, size).unwrap()));
        }
    });
}

/// The bytes of a message.
fn pattern(salt: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|i| mix(salt.wrapping_add(i)));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    bytes.truncate(len);
    bytes
}

/// A message that a round has.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: usize,
    to: usize,
    tag: i32,
    len: usize,
    /// Says what its bytes are, and which layout its sender has.
    salt: u64,
}

const TAGS: u64 = 3;
/// Messages of each rank in a round.
const PER_RANK: u64 = 40;

/// The messages of a round, as all ranks know them, in the order in which each rank sends its own.
fn schedule(seed: u64, round: usize, size: usize) -> Vec<Message> {
    let mut random = Random(mix(seed ^ (round as u64) << 32));
    // Most rounds have short messages; some have long ones, of which few are enough.
    let (most, per_rank) = match random.below(16) {
        0 => (2 << 20, 2),
        1 | 2 => (200 << 10, 10),
        3..6 => (20 << 10, PER_RANK),
        _ => (300, PER_RANK),
    };
    let mut all = Vec::new();
    for from in 0..size {
        for _ in 0..per_rank {
            all.push(Message {
                from,
                to: random.below(size as u64) as usize,
                tag: random.below(TAGS) as i32,
                len: random.below(most) as usize,
                salt: random.below(u64::MAX),
            });
        }
    }
    all
}

/// What is between the elements of a layout.
const GAP: u8 = 0xE7;

/// How a rank receives the messages of a round.
#[derive(Clone, Copy, Debug)]
enum Receives {
    Exactly,
    FromAny,
    AnyTag,
    Anything,
}

/// Checks what was received against the messages that are still expected; each sender's messages of
/// one tag come in their order.
struct Expected {
    streams: HashMap<(usize, i32), std::collections::VecDeque<Message>>,
}

impl Expected {
    fn check(&mut self, status: Status, layout: &Layout, buffer: &[u8], origin: isize) {
        let stream = self.streams.get_mut(&(status.source, status.tag)).unwrap();
        let message = stream.pop_front().expect("no more of these were sent");
        assert_eq!(status.bytes, message.len as u64, "{message:?}");
        let mut found = vec![0; message.len];
        layout.pack_range(buffer, origin, 0, &mut found).unwrap();
        assert!(found == pattern(message.salt, message.len), "{message:?}");
        // What no byte went to is as it was.
        let mut before = vec![GAP; buffer.len()];
        layout.unpack_range(&found, 0, &mut before, origin).unwrap();
        assert!(before == buffer, "around {message:?}");
    }
}

/// Sends and receives `rounds` rounds of random messages. The rank `victim` kills itself in one of
/// them; the others get all that comes before, and then an error that says so.
fn storm(seed: u64, rounds: usize, victim: usize) {
    let mut team = Team::from_env().unwrap();
    let last = mix(seed) as usize % rounds.max(1);
    let death = (team.rank() == victim).then_some(last);
    for round in 0..rounds {
        match storm_round(&mut team, seed, round, death == Some(round)) {
            Ok(()) => {}
            Err(Error::PeerDied { rank }) if rank == victim => return,
            Err(error) => panic!("rank {} in round {round}: {error}", team.rank()),
        }
    }
    assert!(victim >= team.size(), "the victim has not died");
}

fn storm_round(team: &mut Team, seed: u64, round: usize, dies: bool) -> Result<()> {
    let (me, size) = (team.rank(), team.size());
    let all = schedule(seed, round, size);
    let mut random = Random(mix(seed ^ mix(round as u64) ^ me as u64));
    let sends: Vec<Message> = all.iter().filter(|m| m.from == me).copied().collect();
    let mut expected = Expected {
        streams: HashMap::new(),
    };
    let mut receives: Vec<Message> = all.iter().filter(|m| m.to == me).copied().collect();
    for message in &receives {
        let key = (message.from, message.tag);
        expected.streams.entry(key).or_default().push_back(*message);
    }
    let most = receives
        .iter()
        .map(|message| message.len)
        .max()
        .unwrap_or(0);
    // Any order.
    for i in (1..receives.len()).rev() {
        receives.swap(i, random.below(i as u64 + 1) as usize);
    }
    let how = [
        Receives::Exactly,
        Receives::FromAny,
        Receives::AnyTag,
        Receives::Anything,
    ][random.below(4) as usize];
    let out: Vec<(Vec<u8>, Layout, isize)> = sends
        .iter()
        .map(|message| {
            let (layout, room, origin) = layout(message.salt >> 8, message.len);
            let mut buffer = vec![0; room];
            let bytes = pattern(message.salt, message.len);
            layout.unpack(&bytes, &mut buffer, origin).unwrap();
            (buffer, layout, origin)
        })
        .collect();
    let mut into: Vec<(Vec<u8>, Layout, isize)> = receives
        .iter()
        .map(|_| {
            let (layout, room, origin) = layout(random.below(1 << 20), most);
            (vec![GAP; room], layout, origin)
        })
        .collect();
    let places: Vec<(Layout, isize)> = into
        .iter()
        .map(|(_, layout, origin)| (layout.clone(), *origin))
        .collect();
    let death = if dies {
        random.below(sends.len() as u64) as usize
    } else {
        usize::MAX
    };
    let statuses = team.messages_in(|messages| {
        let mut sends = sends.iter().zip(&out).enumerate();
        let mut posted = Vec::new();
        let mut receives = receives.iter().zip(&mut into);
        loop {
            // Sends and receives in any order, too.
            let step = random.below(3);
            let mut did = false;
            if step != 0 {
                if let Some((number, (message, (buffer, layout, origin)))) = sends.next() {
                    did = true;
                    let data = SendBuffer::typed(buffer, *origin, layout)?;
                    // What is not waited for is complete at the end.
                    let mut request = messages.isend(data, message.to, message.tag)?;
                    if random.below(4) == 0 {
                        let _ = messages.test(&mut request)?;
                    }
                    if number == death {
                        // SAFETY: the call only sends a signal.
                        unsafe { libc::raise(libc::SIGKILL) };
                    }
                }
            }
            if step != 1 {
                if let Some((message, (buffer, layout, origin))) = receives.next() {
                    did = true;
                    let (source, tag) = match how {
                        Receives::Exactly => (message.from, message.tag),
                        Receives::FromAny => (ANY_SOURCE, message.tag),
                        Receives::AnyTag => (message.from, ANY_TAG),
                        Receives::Anything => (ANY_SOURCE, ANY_TAG),
                    };
                    let data = RecvBuffer::typed(buffer, *origin, layout)?;
                    posted.push(messages.irecv(data, source, tag)?);
                }
            }
            if !did && sends.len() == 0 && receives.len() == 0 {
                break;
            }
        }
        let wait = posted.into_iter().map(|request| messages.wait(request));
        wait.collect::<Result<Vec<Status>>>()
    })?;
    // Receives that match the same messages get them in the order in which they were posted.
    for ((status, (buffer, _, _)), (layout, origin)) in statuses.iter().zip(&into).zip(&places) {
        expected.check(*status, layout, buffer, *origin);
    }
    team.barrier()
}

/// Messages in all: LIBCOPY_TEST_MESSAGES=100000 takes some seconds more.
fn messages() -> usize {
    let messages = std::env::var("LIBCOPY_TEST_MESSAGES").ok();
    let messages = messages.map(|messages| messages.parse().expect("a number"));
    messages.unwrap_or(20_000)
}

/// Runs storms of `messages` messages together, by teams of 2 to 8 ranks.
fn storms(messages: usize, seed: u64, transport: &str) {
    let (mut sent, mut seed) = (0, seed);
    while sent < messages {
        seed += 1;
        let size = 2 + (mix(seed) % 7) as usize;
        let rounds = 12;
        let script = format!("{seed} {rounds} {size}");
        let statuses = run(size, &script, transport);
        let fine = statuses.iter().all(|status| status.success());
        assert!(fine, "{size} ranks, {transport:?}, {script}: {statuses:?}");
        let of_round = |round| schedule(seed, round, size).len();
        sent += (0..rounds).map(of_round).sum::<usize>();
    }
}

#[test]
fn random_messages_arrive_as_they_were_sent() {
    storms(messages(), 1000, "");
}

#[test]
fn random_messages_arrive_through_shared_memory_alone() {
    storms(messages() / 4, 2000, "shm");
}

#[test]
fn who_waits_for_a_dead_rank_hears_of_it() {
    for number in 0..(messages() / 4000) as u64 {
        let (seed, transport) = (3000 + number, ["", "", "shm"][number as usize % 3]);
        let size = 2 + (mix(seed) % 7) as usize;
        let victim = mix(seed + 7) as usize % size;
        let script = format!("{seed} 6 {victim}");
        let statuses = run(size, &script, transport);
        for (rank, status) in statuses.iter().enumerate() {
            if rank == victim {
                assert_eq!(status.signal(), Some(libc::SIGKILL), "{script}");
            } else {
                assert!(
                    status.success(),
                    "rank {rank} of {size}, {script}: {status:?}"
                );
            }
        }
    }
}

#[test]
fn short_and_long_messages_do_not_overtake_each_other() {
    threads(2, |team| {
        let lengths = [0, 1, 5000, 100_000, 7, 300_000, 64, 8192, 8193, 1 << 20, 3];
        if team.rank() == 0 {
            for (salt, len) in lengths.iter().enumerate() {
                team.send(&pattern(salt as u64, *len), 1, 4).unwrap();
            }
        } else {
            for (salt, len) in lengths.iter().enumerate() {
                let mut bytes = vec![0; 1 << 20];
                let status = team.recv(&mut bytes, ANY_SOURCE, ANY_TAG).unwrap();
                let expected = Status {
                    source: 0,
                    tag: 4,
                    bytes: *len as u64,
                };
                assert_eq!(status, expected);
                assert!(bytes[..*len] == pattern(salt as u64, *len));
            }
        }
    });
}

#[test]
fn a_rank_sends_to_itself() {
    let mut team = Team::join(&TeamKey::random().unwrap(), 0, 1).unwrap();
    let sent = pattern(1, 1 << 20);
    team.send(&sent, 0, 3).unwrap();
    assert_eq!(team.iprobe(ANY_SOURCE, 2).unwrap(), None);
    let found = team.iprobe(ANY_SOURCE, ANY_TAG).unwrap().unwrap();
    assert_eq!((found.source, found.tag, found.bytes), (0, 3, 1 << 20));
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(team.recv(&mut bytes, 0, 3).unwrap(), found);
    assert!(bytes == sent);
    let (out, mut into) = ([7; 4], [0; 4]);
    team.sendrecv(&out, (0, 1), &mut into, (0, 1)).unwrap();
    assert_eq!(into, [7; 4]);
}

#[test]
fn what_there_is_no_room_for_is_an_error() {
    let mut team = Team::join(&TeamKey::random().unwrap(), 0, 1).unwrap();
    let huge = Datatype::named(Named::Byte).vector(1 << 45, 1, 0).unwrap();
    let layout = Layout::new(&huge, 1).unwrap();
    let send = SendBuffer::typed(&[7], 0, &layout).unwrap();
    let answer = team.send(send, 0, 3);
    assert!(matches!(answer, Err(Error::System { .. })), "{answer:?}");
}

#[test]
fn ranks_in_a_circle_do_not_wait_for_each_other() {
    threads(3, |team| {
        let (me, size) = (team.rank(), team.size());
        for len in [10, 100_000, 3 << 20] {
            let mut bytes = vec![0; len];
            let (to, from) = ((me + 1) % size, (me + size - 1) % size);
            let out = pattern(me as u64, len);
            let status = team.sendrecv(&out, (to, 9), &mut bytes, (from, 9)).unwrap();
            assert_eq!((status.source, status.bytes), (from, len as u64));
            assert!(bytes == pattern(from as u64, len));
        }
    });
}

#[test]
fn what_is_too_long_is_an_error_of_its_receiver_alone() {
    threads(2, |team| {
        for len in [100, 1 << 20] {
            if team.rank() == 0 {
                team.send(&vec![1; len], 1, 0).unwrap();
                team.send(&[2; 9], 1, 0).unwrap();
            } else {
                let mut bytes = vec![0; len - 1];
                let error = team.recv(&mut bytes, 0, 0).unwrap_err();
                assert!(
                    matches!(error, Error::Truncated { bytes, capacity }
                        if (bytes, capacity) == (len as u64, len as u64 - 1)),
                    "{error}"
                );
                assert_eq!(team.recv(&mut bytes, 0, 0).unwrap().bytes, 9);
                assert_eq!(bytes[..9], [2; 9]);
            }
        }
        team.barrier().unwrap();
    });
}

#[test]
fn arguments_that_mean_nothing_break_nothing() {
    threads(2, |team| {
        let mut bytes = [0; 4];
        for error in [
            team.send(&bytes, 2, 0).unwrap_err(),
            team.send(&bytes, 1, -1).unwrap_err(),
            team.recv(&mut bytes, 5, 0).unwrap_err(),
            team.recv(&mut bytes, 0, -2).unwrap_err(),
            team.iprobe(2, 0).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Argument { .. }), "{error}");
        }
        let layout = Layout::new(&Datatype::named(Named::Double), 1).unwrap();
        assert!(SendBuffer::typed(&bytes, 0, &layout).is_err());
        assert!(RecvBuffer::typed(&mut bytes, -1, &layout).is_err());
        team.barrier().unwrap();
    });
}

/// A buffer that a rank sends out of can be used again although nobody has received.
#[test]
fn a_sender_does_not_wait_for_a_late_receiver() {
    threads(2, |team| {
        let len = 4 << 20;
        if team.rank() == 0 {
            let mut bytes = pattern(1, len);
            team.send(&bytes, 1, 0).unwrap();
            bytes.fill(0);
            team.send(&bytes, 1, 0).unwrap();
            // Only now the other one receives.
            team.barrier().unwrap();
        } else {
            team.barrier().unwrap();
            let mut bytes = vec![1; len];
            team.recv(&mut bytes, 0, 0).unwrap();
            assert!(bytes == pattern(1, len));
            team.recv(&mut bytes, 0, 0).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    });
}

/// More messages than the ring has room for, and more long ones than there are slots.
#[test]
fn many_messages_wait_for_their_turn() {
    threads(2, |team| {
        let long = vec![5; 20_000];
        let short = vec![6; 3000];
        if team.rank() == 0 {
            team.messages_in(|messages| {
                for _ in 0..150 {
                    messages.isend(&long, 1, 1)?;
                    messages.isend(&short, 1, 2)?;
                }
                Ok(())
            })
            .unwrap();
        } else {
            let mut bytes = vec![0; 20_000];
            // All short ones first: the long ones are kept.
            for (tag, expected) in [(2, &short), (1, &long)] {
                for _ in 0..150 {
                    bytes.fill(0);
                    let status = team.recv(&mut bytes, 0, tag).unwrap();
                    assert!(bytes[..status.bytes as usize] == expected[..]);
                }
            }
        }
    });
}

/// What is under way when the work fails is given up, and the team stays whole.
#[test]
fn messages_are_given_up_with_the_work_that_failed() {
    threads(2, |team| {
        let (long, mut into) = (pattern(3, 1 << 20), vec![0; 1 << 20]);
        let peer = 1 - team.rank();
        let failed = team.messages_in(|messages| {
            messages.irecv(&mut into, peer, 8)?;
            messages.isend(&long, peer, 7)?;
            Err::<(), _>(Error::Truncated {
                bytes: 1,
                capacity: 0,
            })
        });
        assert!(matches!(failed, Err(Error::Truncated { .. })));
        team.barrier().unwrap();
        // The receive has gone, the message has not.
        team.recv(&mut into, peer, 7)
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(into == long);
        team.barrier().unwrap();
    });
}

#[test]
fn who_waits_for_a_rank_that_leaves_hears_of_it() {
    let key = TeamKey::random().unwrap();
    let other = std::thread::spawn(move || drop(Team::join(&key, 1, 2).unwrap()));
    let mut team = Team::join(&key, 0, 2).unwrap();
    let mut bytes = [0; 4];
    let error = team.recv(&mut bytes, ANY_SOURCE, ANY_TAG).unwrap_err();
    assert!(matches!(error, Error::PeerLeft { rank: 1 }), "{error}");
    other.join().unwrap();
}

/// A rank that leaves has handed over what it has sent.
#[test]
fn what_a_rank_has_sent_arrives_after_it_has_left() {
    for transport in [None, Some(libcopy::TransportKind::Shm)] {
        threads(2, |team| {
            team.set_transport(transport).unwrap();
            let len = 3 << 20;
            if team.rank() == 0 {
                team.send(&pattern(9, len), 1, 0).unwrap();
                team.send(b"bye", 1, 1).unwrap();
            } else {
                std::thread::sleep(Duration::from_millis(100));
                let mut bytes = vec![0; len];
                let mut end = [0; 3];
                // Through shared memory alone, a long send ends when it is received.
                if transport.is_none() {
                    team.recv(&mut end, 0, 1).unwrap();
                }
                team.recv(&mut bytes, 0, 0).unwrap();
                assert!(bytes == pattern(9, len));
                if transport.is_some() {
                    team.recv(&mut end, 0, 1).unwrap();
                }
                assert_eq!(&end, b"bye");
            }
        });
    }
}
