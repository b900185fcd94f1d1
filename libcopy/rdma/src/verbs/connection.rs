// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reliable connections, and waiting for what was posted to them.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::device::{Device, INLINE_DATA, PORT};
use super::library::{Mlx5, check, failed};
use super::mkey::Mkey;
use super::sys::{
    AhAttr, CompChannel, GlobalRoute, Mlx5QpEx, Mlx5QpInitAttr, Opaque, Qp, QpAttr, QpCap, QpEx,
    QpInitAttr, QpInitAttrEx, RecvWr, SendWr, Sge, Wc, constant,
};
use crate::endpoint::Received;
use crate::error::{Error, Result};

/// How a thread waits for completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// It polls.
    #[default]
    Poll,
    /// It sleeps until the device interrupts.
    Event,
}

/// How a connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Work requests of each queue.
    pub queue: u32,
    /// A packet that is not acknowledged is sent again after 4.096 us x 2^this (`timeout` of
    /// ibv_modify_qp(3)),
    pub timeout: u8,
    /// so often (0 to 7).
    pub retries: u8,
    /// Entries of a list.
    pub max_sge: usize,
    /// Whether memory keys are mapped through it: mlx5 only.
    pub maps_keys: bool,
}

impl Options {
    /// What a device allows.
    pub fn of(device: &Device) -> Options {
        Options {
            queue: device.max_work_requests().min(256),
            timeout: 16,
            retries: 7,
            max_sge: device.abilities().sge.map_or(1, |limits| limits.max_iovs),
            maps_keys: device.has_memory_keys(),
        }
    }
}

/// What a peer has to know to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The port's address; zero where there is none.
    pub gid: [u8; 16],
    /// The queue pair's number.
    pub qp_num: u32,
    /// The port's local identifier.
    pub lid: u16,
    /// `enum ibv_mtu`.
    pub mtu: u8,
}

impl Address {
    /// Bytes of an address in a message.
    pub const BYTES: usize = 23;

    /// The address in a message.
    pub fn to_bytes(&self) -> [u8; Address::BYTES] {
        let mut bytes = [0; Address::BYTES];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..20].copy_from_slice(&self.qp_num.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.lid.to_le_bytes());
        bytes[22] = self.mtu;
        bytes
    }

    /// The address that a message has.
    pub fn from_bytes(bytes: &[u8; Address::BYTES]) -> Address {
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[..16]);
        Address {
            gid,
            qp_num: u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]),
            lid: u16::from_le_bytes([bytes[20], bytes[21]]),
            mtu: bytes[22],
        }
    }
}

/// A queue of completions with the channel that announces them.
struct Queue {
    device: Arc<Device>,
    channel: *mut CompChannel,
    cq: Opaque,
}

impl Queue {
    fn new(device: &Arc<Device>, entries: u32) -> Result<Queue> {
        let verbs = device.verbs();
        // SAFETY: the context is open.
        let channel = unsafe { (verbs.create_comp_channel)(device.context()) };
        if channel.is_null() {
            return Err(failed("ibv_create_comp_channel"));
        }
        // SAFETY: as above, and the channel exists.
        let cq = unsafe {
            (verbs.create_cq)(
                device.context(),
                entries as i32,
                std::ptr::null_mut(),
                channel,
                0,
            )
        };
        if cq.is_null() {
            let error = failed("ibv_create_cq");
            // SAFETY: no queue uses the channel.
            unsafe { (verbs.destroy_comp_channel)(channel) };
            return Err(error);
        }
        Ok(Queue {
            device: device.clone(),
            channel,
            cq,
        })
    }

    fn poll(&self) -> Result<Option<Wc>> {
        let mut wc = Wc::default();
        // SAFETY: the context is open; its driver has set the function.
        let poll = unsafe { (*self.device.context()).ops.poll_cq };
        let poll = poll.ok_or(Error::MissingFunction {
            library: "the device's driver",
            function: "poll_cq",
        })?;
        // SAFETY: the queue exists, and there is room for one completion.
        match unsafe { poll(self.cq, 1, &raw mut wc) } {
            0 => Ok(None),
            1 => Ok(Some(wc)),
            _ => Err(failed("ibv_poll_cq")),
        }
    }

    fn next(&self, wait: Wait) -> Result<Wc> {
        loop {
            if let Some(wc) = self.poll()? {
                return Ok(wc);
            }
            match wait {
                Wait::Poll => std::thread::yield_now(),
                Wait::Event => {
                    self.arm()?;
                    // What came before the queue was armed is not announced.
                    if let Some(wc) = self.poll()? {
                        return Ok(wc);
                    }
                    self.sleep()?;
                }
            }
        }
    }

    fn arm(&self) -> Result<()> {
        // SAFETY: the context is open.
        let arm = unsafe { (*self.device.context()).ops.req_notify_cq };
        let arm = arm.ok_or(Error::MissingFunction {
            library: "the device's driver",
            function: "req_notify_cq",
        })?;
        // SAFETY: the queue exists.
        check("ibv_req_notify_cq", unsafe { arm(self.cq, 0) })
    }

    fn sleep(&self) -> Result<()> {
        let verbs = self.device.verbs();
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel exists, both pointers are written.
        let code = unsafe { (verbs.get_cq_event)(self.channel, &raw mut cq, &raw mut context) };
        if code != 0 {
            let error = failed("ibv_get_cq_event");
            let is_signal = matches!(error, Error::Verbs { errno, .. } if errno == libc::EINTR);
            return if is_signal { Ok(()) } else { Err(error) };
        }
        // SAFETY: one event of this queue, the only one of its channel.
        unsafe { (verbs.ack_cq_events)(cq, 1) };
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let verbs = self.device.verbs();
        // SAFETY: the queue pair is gone (it is dropped first), all events are acknowledged.
        unsafe {
            (verbs.destroy_cq)(self.cq);
            (verbs.destroy_comp_channel)(self.channel);
        }
    }
}

/// A queue pair.
struct Pair {
    device: Arc<Device>,
    qp: *mut Qp,
    /// For memory keys.
    ex: Option<(&'static Mlx5, *mut QpEx, *mut Mlx5QpEx)>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_qp or mlx5dv_create_qp; nobody posts any more.
        unsafe { (self.device.verbs().destroy_qp)(self.qp) };
    }
}

struct Inner {
    /// Before the queues, which it uses.
    pair: Pair,
    sends: Queue,
    receives: Queue,
    /// Requests that were posted and whose completions have not been polled.
    pending_sends: u32,
    /// Completions of requests that were met while another one was awaited.
    seen: VecDeque<Wc>,
}

/// The number of a request that maps or unmaps a key, which is awaited at once.
const MAPPING: u64 = u64::MAX;

/// A reliable connection to one peer.
pub struct Connection {
    device: Arc<Device>,
    options: Options,
    inner: Mutex<Inner>,
}

// SAFETY: the pointers are libibverbs' own, whose functions any thread may call; `inner` is behind
// a lock.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Connection");
        out.field("device", &self.device.name());
        out.finish_non_exhaustive()
    }
}

impl Connection {
    /// A queue pair that is not connected yet.
    ///
    /// # Errors
    ///
    /// What the device cannot do (of `options`), or has no resources for.
    pub fn new(device: &Arc<Device>, options: Options) -> Result<Connection> {
        let sends = Queue::new(device, options.queue + 1)?;
        let receives = Queue::new(device, options.queue + 1)?;
        let mut init = QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: sends.cq,
            recv_cq: receives.cq,
            srq: std::ptr::null_mut(),
            cap: QpCap {
                max_send_wr: options.queue,
                max_recv_wr: options.queue,
                max_send_sge: options.max_sge.max(1) as u32,
                max_recv_sge: options.max_sge.max(1) as u32,
                max_inline_data: 0,
            },
            qp_type: constant::QPT_RC,
            sq_sig_all: 0,
        };
        let pair = match device.mlx5().filter(|_| options.maps_keys) {
            None => {
                // SAFETY: the domain and the queues exist.
                let qp = unsafe { (device.verbs().create_qp)(device.pd(), &raw mut init) };
                if qp.is_null() {
                    return Err(failed("ibv_create_qp"));
                }
                Pair {
                    device: device.clone(),
                    qp,
                    ex: None,
                }
            }
            Some(mlx5) => Connection::mapping_pair(device, mlx5, init)?,
        };
        Ok(Connection {
            device: device.clone(),
            options,
            inner: Mutex::new(Inner {
                pair,
                sends,
                receives,
                pending_sends: 0,
                seen: VecDeque::new(),
            }),
        })
    }

    fn mapping_pair(device: &Arc<Device>, mlx5: &'static Mlx5, base: QpInitAttr) -> Result<Pair> {
        let mut init = QpInitAttrEx {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: QpCap {
                max_inline_data: INLINE_DATA,
                ..base.cap
            },
            qp_type: base.qp_type,
            sq_sig_all: base.sq_sig_all,
            comp_mask: constant::QP_INIT_ATTR_PD | constant::QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: device.pd(),
            xrcd: std::ptr::null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: std::ptr::null_mut(),
            rx_hash_conf: [0; 3],
            source_qpn: 0,
            send_ops_flags: constant::QP_EX_WITH_RDMA_WRITE
                | constant::QP_EX_WITH_SEND
                | constant::QP_EX_WITH_LOCAL_INV,
        };
        let mut extra = Mlx5QpInitAttr {
            comp_mask: constant::MLX5_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
            create_flags: 0,
            padding: 0,
            dc_type: 0,
            dct_access_key: 0,
            send_ops_flags: constant::MLX5_QP_EX_WITH_MR_LIST
                | constant::MLX5_QP_EX_WITH_MR_INTERLEAVED,
        };
        // SAFETY: the context is open and both structures are as long as the headers'
        // (tests/headers.rs).
        let qp = unsafe { (mlx5.create_qp)(device.context(), &raw mut init, &raw mut extra) };
        if qp.is_null() {
            return Err(failed("mlx5dv_create_qp"));
        }
        let mut pair = Pair {
            device: device.clone(),
            qp,
            ex: None,
        };
        // SAFETY: the queue pair was made with send_ops_flags.
        let ex = unsafe { (device.verbs().qp_to_qp_ex)(qp) };
        if ex.is_null() {
            return Err(failed("ibv_qp_to_qp_ex"));
        }
        // SAFETY: as above.
        let mlx5_ex = unsafe { (mlx5.qp_ex_from_ibv_qp_ex)(ex) };
        if mlx5_ex.is_null() {
            return Err(failed("mlx5dv_qp_ex_from_ibv_qp_ex"));
        }
        pair.ex = Some((mlx5, ex, mlx5_ex));
        Ok(pair)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// How it was made.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What the peer needs.
    pub fn address(&self) -> Address {
        Address {
            gid: self.device.gid().map_or([0; 16], |gid| gid.bytes),
            // SAFETY: the queue pair exists.
            qp_num: unsafe { (*self.lock().pair.qp).qp_num },
            lid: self.device.lid(),
            mtu: self.device.mtu() as u8,
        }
    }

    /// Connects to a peer, which does the same with this one's address.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`]: no way to the peer.
    pub fn connect(&self, peer: &Address) -> Result<()> {
        use constant as c;
        let inner = self.lock();
        let modify = |attr: &mut QpAttr, mask| {
            // SAFETY: the queue pair exists; the structure is as long as the header's
            // (tests/headers.rs).
            let code = unsafe { (self.device.verbs().modify_qp)(inner.pair.qp, attr, mask) };
            check("ibv_modify_qp", code)
        };
        let mut init = QpAttr {
            qp_state: c::QPS_INIT,
            qp_access_flags: c::ACCESS_LOCAL_WRITE | c::ACCESS_REMOTE_WRITE,
            port_num: PORT,
            ..QpAttr::default()
        };
        modify(
            &mut init,
            c::QP_STATE | c::QP_PKEY_INDEX | c::QP_PORT | c::QP_ACCESS_FLAGS,
        )?;
        let mut dgid = [0; 2];
        for (word, bytes) in dgid.iter_mut().zip(peer.gid.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        let gid = self.device.gid();
        let mut receive = QpAttr {
            qp_state: c::QPS_RTR,
            path_mtu: self.device.mtu().min(u32::from(peer.mtu)),
            dest_qp_num: peer.qp_num,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr: AhAttr {
                grh: GlobalRoute {
                    dgid,
                    sgid_index: gid.map_or(0, |gid| gid.index),
                    hop_limit: 64,
                    ..GlobalRoute::default()
                },
                dlid: peer.lid,
                is_global: u8::from(self.device.is_ethernet()),
                port_num: PORT,
                ..AhAttr::default()
            },
            ..QpAttr::default()
        };
        modify(
            &mut receive,
            c::QP_STATE
                | c::QP_AV
                | c::QP_PATH_MTU
                | c::QP_DEST_QPN
                | c::QP_RQ_PSN
                | c::QP_MAX_DEST_RD_ATOMIC
                | c::QP_MIN_RNR_TIMER,
        )?;
        let mut send = QpAttr {
            qp_state: c::QPS_RTS,
            timeout: self.options.timeout,
            retry_cnt: self.options.retries,
            // 7 would wait for ever.
            rnr_retry: self.options.retries.min(6),
            max_rd_atomic: 1,
            ..QpAttr::default()
        };
        modify(
            &mut send,
            c::QP_STATE
                | c::QP_TIMEOUT
                | c::QP_RETRY_CNT
                | c::QP_RNR_RETRY
                | c::QP_SQ_PSN
                | c::QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Ends the connection: what is posted fails, here and at the peer.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device refuses.
    pub fn disconnect(&self) -> Result<()> {
        let inner = self.lock();
        let mut attr = QpAttr {
            qp_state: constant::QPS_ERR,
            ..QpAttr::default()
        };
        // SAFETY: as in `connect`.
        let code = unsafe {
            (self.device.verbs().modify_qp)(inner.pair.qp, &raw mut attr, constant::QP_STATE)
        };
        check("ibv_modify_qp", code)
    }

    /// Posts a WRITE of a list to contiguous remote memory. If the queue is full, waits for a
    /// request to complete. [`Connection::next_sent`] gives `id` when it has completed; any but the
    /// greatest number.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device refuses the request.
    ///
    /// # Safety
    ///
    /// The list's memory is registered and stays valid until the request has completed:
    /// [`Connection::next_sent`] has given its number, or [`Connection::flush`] has returned.
    pub unsafe fn post_write(&self, list: &[Sge], remote: u64, rkey: u32, id: u64) -> Result<()> {
        // SAFETY: as the caller says, the list's memory stays until the request has completed.
        unsafe { self.post(list, constant::WR_RDMA_WRITE, remote, rkey, id) }
    }

    /// Posts a SEND of a list.
    ///
    /// # Errors
    ///
    /// As for [`Connection::post_write`].
    ///
    /// # Safety
    ///
    /// As for [`Connection::post_write`].
    pub unsafe fn post_send(&self, list: &[Sge], id: u64) -> Result<()> {
        // SAFETY: as the caller says, the list's memory stays until the request has completed.
        unsafe { self.post(list, constant::WR_SEND, 0, 0, id) }
    }

    unsafe fn post(
        &self,
        list: &[Sge],
        opcode: u32,
        remote_addr: u64,
        rkey: u32,
        wr_id: u64,
    ) -> Result<()> {
        let mut inner = self.lock();
        self.make_room(&mut inner)?;
        let mut list = list.to_vec();
        let mut request = SendWr {
            wr_id,
            next: std::ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: list.len() as i32,
            opcode,
            send_flags: constant::SEND_SIGNALED,
            imm_data: 0,
            remote_addr,
            rkey,
            wr_rest: [0; 5],
            qp_type: 0,
            bind_mw: [0; 6],
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the context is open.
        let post = unsafe { (*self.device.context()).ops.post_send };
        let post = post.ok_or(Error::MissingFunction {
            library: "the device's driver",
            function: "post_send",
        })?;
        // SAFETY: the request and its list live until the call returns, which copies them.
        check("ibv_post_send", unsafe {
            post(inner.pair.qp, &raw mut request, &raw mut bad)
        })?;
        inner.pending_sends += 1;
        Ok(())
    }

    /// Posts a receive with a scatter list.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`], with `ENOMEM` if the queue is full.
    ///
    /// # Safety
    ///
    /// The list's memory is registered for writing and stays valid, and nobody uses it, until it
    /// has been received or the connection has ended.
    pub unsafe fn post_receive(&self, list: &[Sge], id: u64) -> Result<()> {
        let inner = self.lock();
        let mut list = list.to_vec();
        let mut request = RecvWr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: list.len() as i32,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the context is open.
        let post = unsafe { (*self.device.context()).ops.post_recv };
        let post = post.ok_or(Error::MissingFunction {
            library: "the device's driver",
            function: "post_recv",
        })?;
        // SAFETY: as in `post`.
        check("ibv_post_recv", unsafe {
            post(inner.pair.qp, &raw mut request, &raw mut bad)
        })
    }

    /// Waits until everything that was posted to send has completed. [`Connection::next_sent`]
    /// gives none of it then.
    ///
    /// # Errors
    ///
    /// [`Error::WorkRequest`]: a request failed. Nothing that was posted is under way any more then
    /// either.
    pub fn flush(&self, wait: Wait) -> Result<()> {
        let mut inner = self.lock();
        let mut result = Ok(());
        loop {
            let wc = match inner.seen.pop_front() {
                Some(wc) => wc,
                None if inner.pending_sends == 0 => return result,
                None => {
                    inner.pending_sends -= 1;
                    inner.sends.next(wait)?
                }
            };
            // The first failure is the cause; what follows was flushed.
            result = result.and(self.verdict(&wc, "a request to send"));
        }
    }

    /// A request to send that has completed, by its number.
    ///
    /// # Errors
    ///
    /// [`Error::WorkRequest`]: it failed, and with it the connection.
    pub fn next_sent(&self) -> Result<Option<u64>> {
        let mut inner = self.lock();
        if inner.seen.is_empty() {
            match inner.sends.poll()? {
                Some(wc) => {
                    inner.pending_sends -= 1;
                    inner.seen.push_back(wc);
                }
                None => return Ok(None),
            }
        }
        let Some(wc) = inner.seen.pop_front() else {
            return Ok(None);
        };
        self.verdict(&wc, "a request to send")?;
        Ok(Some(wc.wr_id))
    }

    /// Waits until the queue has room for a request.
    fn make_room(&self, inner: &mut Inner) -> Result<()> {
        while inner.pending_sends >= self.options.queue {
            let wc = inner.sends.next(Wait::Poll)?;
            inner.pending_sends -= 1;
            inner.seen.push_back(wc);
        }
        Ok(())
    }

    /// One receive, if one has completed.
    ///
    /// # Errors
    ///
    /// [`Error::WorkRequest`] if it failed or the connection has.
    pub fn next_received(&self) -> Result<Option<Received>> {
        let inner = self.lock();
        let Some(wc) = inner.receives.poll()? else {
            return Ok(None);
        };
        self.verdict(&wc, "a receive")?;
        Ok(Some(Received {
            id: wc.wr_id,
            bytes: wc.byte_len,
        }))
    }

    fn verdict(&self, wc: &Wc, operation: &'static str) -> Result<()> {
        if wc.status == 0 {
            return Ok(());
        }
        // SAFETY: the function gives a constant string for any number.
        let status = unsafe { CStr::from_ptr((self.device.verbs().wc_status_str)(wc.status)) };
        Err(Error::WorkRequest {
            operation,
            status: status.to_string_lossy().into_owned(),
            code: wc.status,
        })
    }

    /// Posts a WRITE of all bytes of a mapped key to those of a peer's, as
    /// [`Connection::post_write`].
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device refuses the request; a connection without memory keys.
    pub fn post_mapped(&self, key: &Mkey, rkey: u32, id: u64) -> Result<()> {
        let mut inner = self.lock();
        self.make_room(&mut inner)?;
        let (lkey, bytes) = (key.lkey(), key.bytes());
        self.post_extended_locked(&mut inner, "wr_rdma_write", id, |ex, _| {
            // SAFETY: the extended queue pair exists; both keys are zero-based.
            unsafe {
                if let (Some(write), Some(set)) = ((*ex).wr_rdma_write, (*ex).wr_set_sge) {
                    write(ex, rkey, 0);
                    set(ex, lkey, 0, bytes as u32);
                }
            }
        })
    }

    /// Posts what `build` adds to an extended work request, and waits until it has completed: a
    /// queue is executed in order, so for all that was posted before. Other requests' completions
    /// are kept for [`Connection::next_sent`].
    pub(super) fn post_extended(
        &self,
        operation: &'static str,
        build: impl FnOnce(*mut QpEx, *mut Mlx5QpEx),
    ) -> Result<()> {
        let mut inner = self.lock();
        self.make_room(&mut inner)?;
        self.post_extended_locked(&mut inner, operation, MAPPING, build)?;
        let mut result = Ok(());
        loop {
            let wc = inner.sends.next(Wait::Poll)?;
            inner.pending_sends -= 1;
            // The first failure is the cause; what follows was flushed.
            result = result.and(self.verdict(&wc, operation));
            if wc.wr_id == MAPPING {
                return result;
            }
            inner.seen.push_back(wc);
        }
    }

    fn post_extended_locked(
        &self,
        inner: &mut Inner,
        operation: &'static str,
        id: u64,
        build: impl FnOnce(*mut QpEx, *mut Mlx5QpEx),
    ) -> Result<()> {
        let Some((_, ex, mlx5_ex)) = inner.pair.ex else {
            return Err(Error::NoDevice(format!(
                "{} has no memory keys",
                self.device.name()
            )));
        };
        let missing = Error::MissingFunction {
            library: "the device's driver",
            function: "wr_start",
        };
        // SAFETY: the extended queue pair exists.
        let functions = unsafe { ((*ex).wr_start, (*ex).wr_complete) };
        let (Some(start), Some(complete)) = functions else {
            return Err(missing);
        };
        // SAFETY: as above; wr_start(3): what is between start and complete belongs to this thread,
        // which has the lock.
        unsafe {
            start(ex);
            (*ex).wr_id = id;
            (*ex).wr_flags = constant::SEND_SIGNALED | constant::SEND_FENCE;
        }
        build(ex, mlx5_ex);
        // SAFETY: as above.
        check(operation, unsafe { complete(ex) })?;
        inner.pending_sends += 1;
        Ok(())
    }
}
