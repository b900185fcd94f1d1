// SPDX-License-Identifier: MIT OR Apache-2.0

//! The link to one peer: made on first need, gone for good when it fails.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use libcopy::lock::lock;
use libcopy::policy::RdmaProfile;
use libcopy::topology::Topology;
use libcopy_rdma::keys::Keys;
use libcopy_rdma::transfer::{Channel, Link, Settings};
use libcopy_rdma::verbs::{Address, Connection, Device, Options, shared_keys};
use libcopy_rdma::{Error, Result, Thresholds};

use crate::library::abi::complain;
use crate::rdma::wire::Wire;

/// Control messages of a link that have come, and those that are to be sent.
#[derive(Debug, Default)]
struct Mailbox {
    received: VecDeque<Vec<u8>>,
    unsent: Vec<Vec<u8>>,
}

/// The link's end of the mailbox.
#[derive(Clone, Debug, Default)]
pub struct Mail(Arc<Mutex<Mailbox>>);

impl Channel for Mail {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        lock(&self.0).unsent.push(message.to_vec());
        Ok(())
    }

    fn try_receive(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(lock(&self.0).received.pop_front())
    }
}

/// What `libcopy tune --rdma` has measured on this machine, or the built-in thresholds.
fn thresholds() -> Thresholds {
    let found = RdmaProfile::load(&Topology::current().machine())
        .and_then(|profile| profile.map(|profile| profile.thresholds()).transpose());
    match found {
        Ok(thresholds) => thresholds.unwrap_or_default(),
        Err(why) => {
            complain(&format!("{why}; the built-in thresholds are used"));
            Thresholds::default()
        }
    }
}

/// A device and the memory keys of all its links.
#[derive(Debug)]
pub struct Adapter {
    device: Arc<Device>,
    settings: Settings,
    keys: Option<Arc<Mutex<Keys<Connection>>>>,
}

impl Adapter {
    /// Its keys are made with the first link.
    pub fn new(device: Arc<Device>) -> Adapter {
        let settings = Settings {
            thresholds: thresholds(),
            ..Settings::default()
        };
        let keys = shared_keys(&device, settings.pool);
        Adapter {
            device,
            settings,
            keys,
        }
    }
}

/// How far the making of the link is.
#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    /// We have told the peer our address.
    Told(Arc<Connection>),
    /// We can receive.
    Connected(Arc<Connection>),
    /// The peer can, too.
    Established(Box<Link<Mail>>),
    /// Messages go through the MPI library.
    Failed,
}

/// The link to one peer, from its first message on, and the control messages of it that go through
/// the MPI library.
#[derive(Debug, Default)]
pub struct PeerLink {
    state: State,
    mail: Mail,
}

impl PeerLink {
    /// Whether messages cannot go over it any more.
    pub fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// The link, if messages can go over it.
    pub fn established(&mut self) -> Option<&mut Link<Mail>> {
        match &mut self.state {
            State::Established(link) => Some(link),
            _ => None,
        }
    }

    /// Messages go through the MPI library from now on; the peer can write nothing here any more.
    pub fn fail(&mut self, rank: i32, why: &Error) {
        if !self.has_failed() {
            complain(&format!(
                "messages from and to rank {rank} do not go over RDMA any more: {why}"
            ));
        }
        self.state = State::Failed;
        *lock(&self.mail.0) = Mailbox::default();
    }

    fn make(&mut self, adapter: Option<&Adapter>) -> Result<Address> {
        let Some(Adapter {
            device, settings, ..
        }) = adapter
        else {
            return Err(Error::NoDevice("there is no RDMA device".to_owned()));
        };
        let options = settings.options.unwrap_or_else(|| Options::of(device));
        let connection = Connection::new(device, options)?;
        let address = connection.address();
        self.state = State::Told(Arc::new(connection));
        Ok(address)
    }

    /// Makes the link if that has not begun; what the peer has to be told.
    pub fn want(&mut self, rank: i32, adapter: Option<&Adapter>) -> Vec<Wire> {
        if !matches!(self.state, State::None) {
            return Vec::new();
        }
        match self.make(adapter) {
            Ok(address) => vec![Wire::Hello(Some(address))],
            Err(why) => {
                self.fail(rank, &why);
                vec![Wire::Hello(None)]
            }
        }
    }

    /// The peer has told its address; what it has to be told.
    pub fn hear(&mut self, rank: i32, adapter: Option<&Adapter>, theirs: &Address) -> Vec<Wire> {
        let mut answer = self.want(rank, adapter);
        let State::Told(connection) = &self.state else {
            return answer;
        };
        let connection = connection.clone();
        match connection.connect(theirs) {
            Ok(()) => {
                self.state = State::Connected(connection);
                answer.push(Wire::Ready);
            }
            Err(why) => {
                self.fail(rank, &why);
                answer.push(Wire::Hello(None));
            }
        }
        answer
    }

    /// The peer can receive.
    pub fn ready(&mut self, rank: i32, adapter: Option<&Adapter>) {
        if let (State::Connected(connection), Some(adapter)) = (&self.state, adapter) {
            let keys = adapter
                .keys
                .clone()
                .filter(|_| connection.options().maps_keys);
            let (connection, mail) = (connection.clone(), self.mail.clone());
            let link = Link::over(connection, mail, rank as u32, &adapter.settings, keys);
            self.state = State::Established(Box::new(link));
        }
    }

    /// A control message of the link has come.
    pub fn deliver(&mut self, message: Vec<u8>) {
        if !self.has_failed() {
            lock(&self.mail.0).received.push_back(message);
        }
    }

    /// Those that are to be sent.
    pub fn take_unsent(&mut self) -> Vec<Wire> {
        let unsent = std::mem::take(&mut lock(&self.mail.0).unsent);
        unsent.into_iter().map(Wire::Link).collect()
    }
}
