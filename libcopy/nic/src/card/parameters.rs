// SPDX-License-Identifier: MIT OR Apache-2.0

//! The one table of parameters of the simulated card.

/// Times are in picoseconds: with them all times of the paper's configuration are whole numbers.
pub type Ps = u64;

/// Picoseconds of a nanosecond.
pub const NS: Ps = 1000;

/// A card, its network and its host interface. [`Parameters::PAPER`] is the paper's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Bits per second of the network, payload only.
    pub line_rate: u64,
    /// Payload bytes of a packet, the paper's k.
    pub packet: u64,
    /// Handler processing units, the paper's P.
    pub hpus: u64,
    /// Their clock in MHz.
    pub mhz: u64,
    /// Bytes of NIC memory for descriptions of datatypes and checkpoints, the paper's M_NIC.
    pub nic_memory: u64,
    /// Bytes of NIC memory for packets that wait for their handlers, the paper's B_pkt.
    pub packet_buffer: u64,
    /// Bytes per second with which a packet is copied to NIC memory.
    pub memory_bandwidth: u64,
    /// Bytes per second of PCIe, after the encoding of the lanes.
    pub pcie_bandwidth: u64,
    /// Payload bytes of a PCIe packet (TLP) at most.
    pub tlp_payload: u64,
    /// Bytes that a TLP has besides.
    pub tlp_overhead: u64,
    /// A PCIe read, there and back.
    pub pcie_read: Ps,
    /// A PCIe write, one way.
    pub pcie_write: Ps,
    /// From the sender's card to the receiver's.
    pub network_latency: Ps,
    /// Searching the match lists for a message's first packet.
    pub matching: Ps,
    /// Giving a packet to an idle HPU.
    pub dispatch: Ps,
    /// Entries that the iovec card holds, the paper's v.
    pub iovec_entries: u64,
}

impl Parameters {
    /// Section 5.1 of the paper: 200 Gbit/s, 2 KiB of payload, 32 HPUs at 800 MHz, NIC memory of 50
    /// GiB/s, PCIe Gen4 x32 (16 GT/s a lane, 128b/130b), v = 32 with reads of 500 ns.
    ///
    /// The paper does not give the others. NIC memory: 8 MiB of L2 (section 4.4), of which 6 MiB
    /// for datatypes ("more than 6 MiB should be employed", section 4) and 2 MiB for packets. TLP:
    /// 24 bytes of header and framing, 256 of payload (Neugebauer et al., SIGCOMM 2018, which the
    /// paper cites). Latencies of network, matching, dispatch and writes are ours.
    pub const PAPER: Parameters = Parameters {
        line_rate: 200_000_000_000,
        packet: 2048,
        hpus: 32,
        mhz: 800,
        nic_memory: 6 << 20,
        packet_buffer: 2 << 20,
        memory_bandwidth: 50 << 30,
        pcie_bandwidth: 32 * 16_000_000_000 / 8 / 130 * 128,
        tlp_payload: 256,
        tlp_overhead: 24,
        pcie_read: 500 * NS,
        pcie_write: 250 * NS,
        network_latency: 500 * NS,
        matching: 30 * NS,
        dispatch: 10 * NS,
        iovec_entries: 32,
    };

    /// These parameters with `hpus` HPUs: the paper has 16 in figures 8, 13b, 14 and 15.
    #[must_use]
    pub const fn with_hpus(mut self, hpus: u64) -> Parameters {
        self.hpus = hpus;
        self
    }

    /// Time of `bytes` on the network.
    pub fn wire(&self, bytes: u64) -> Ps {
        scaled(bytes * 8, 1_000_000_000_000, self.line_rate)
    }

    /// The paper's T_pkt: from packet to packet.
    pub fn packet_time(&self) -> Ps {
        self.wire(self.packet)
    }

    /// Packets of a message.
    pub fn packets(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.packet)
    }

    /// Time of cycles of an HPU.
    pub fn cycles(&self, cycles: u64) -> Ps {
        scaled(cycles, 1_000_000, self.mhz)
    }

    /// Time of a write or read of `bytes` on PCIe: payload and what each TLP has besides. A write
    /// of nothing is a TLP.
    pub fn pcie(&self, bytes: u64) -> Ps {
        let tlps = bytes.div_ceil(self.tlp_payload).max(1);
        let all = bytes + tlps * self.tlp_overhead;
        scaled(all, 1_000_000_000_000, self.pcie_bandwidth)
    }

    /// Time of copying a packet's `bytes` to NIC memory.
    pub fn buffering(&self, bytes: u64) -> Ps {
        scaled(bytes, 1_000_000_000_000, self.memory_bandwidth)
    }
}

/// `value * factor / divisor`, rounded up.
fn scaled(value: u64, factor: u64, divisor: u64) -> Ps {
    let product = u128::from(value) * u128::from(factor);
    u64::try_from(product.div_ceil(u128::from(divisor))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_configuration() {
        let card = Parameters::PAPER;
        assert_eq!(card.packet_time(), 81_920, "T_pkt is 81.92 ns");
        assert_eq!(card.cycles(1), 1250, "800 MHz");
        assert_eq!(card.packets(4 << 20), 2048);
        assert_eq!(card.packets(2049), 2);
        // 512 writes of 4 bytes take longer than a packet on the wire, 32 of 64 bytes do not.
        assert!(512 * card.pcie(4) > card.packet_time());
        assert!(32 * card.pcie(64) < card.packet_time());
        assert!(card.pcie(0) > 0);
    }
}
