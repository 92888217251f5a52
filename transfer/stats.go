// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"iter"
	"slices"
)

// Stats are the counts of a peer since Dial or Accept. Those of requests count
// what this end submitted, not what the peer does with this end's memory.
type Stats struct {
	Requests      uint64        `json:"requests"` // requests that are done, including those that failed
	Failed        uint64        `json:"failed"`   // requests that failed
	Pending       int           `json:"pending"`  // requests that are submitted and not done
	Sent          uint64        `json:"sent"`     // notifications that the peer has
	Received      uint64        `json:"received"` // notifications of the peer that arrived
	Sessions      uint64        `json:"sessions"` // sessions that began; more than one means that the peer began anew
	Regions       int           `json:"regions"`  // regions that the peer offers now
	Devices       []DeviceStats `json:"devices"`
	Incarnation   uint64        `json:"incarnation"`     // of the peer's engine; 0 while there is no session
	ControlIsDown bool          `json:"control_is_down"` // whether there is no control connection now
}

// DeviceStats are the counts of a peer on one device of this end.
type DeviceStats struct {
	Device      string `json:"device"`
	Connections int    `json:"connections"` // data connections that are up
	Made        uint64 `json:"made"`        // data connections that were made
	Lost        uint64 `json:"lost"`        // of those, data connections that ended
	Read        uint64 `json:"read"`        // bytes that were read from the peer
	Written     uint64 `json:"written"`     // bytes that were written to the peer
	Slices      uint64 `json:"slices"`      // work requests that are done
	Repeated    uint64 `json:"repeated"`    // work requests that failed with their connection and were to be repeated
}

// PeerStats are the counts of a peer, with its address.
type PeerStats struct {
	Peer   string `json:"peer"`   // Peer.Address
	Dialed bool   `json:"dialed"` // whether this end has dialed
	Stats
}

// EngineStats are what an engine tells other processes of itself.
type EngineStats struct {
	PID     int         `json:"pid"`     // process ID; 0: the process is in another PID namespace
	Program string      `json:"program"` // name of the program, as ps shows it
	Devices []string    `json:"devices"` // Engine.Devices
	Peers   []PeerStats `json:"peers"`   // sorted by address
	// Error says why the engine has not answered; then there is nothing but
	// the process ID.
	Error string `json:"error,omitempty"`
}

// Stats returns the peer's counts.
func (p *Peer) Stats() Stats {
	if p.check("") != nil {
		return Stats{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.stats
	all.Pending = p.pending
	all.Devices = slices.Clone(p.perDevice)
	all.ControlIsDown = true
	if s := p.session; s != nil && s.err == nil {
		all.Regions, all.Incarnation, all.ControlIsDown = len(s.regions), s.incarnation, s.control == nil
		for _, path := range s.up {
			all.Devices[path.local.index].Connections++
		}
	}
	return all
}

// Add adds the counts of another peer, on the same devices, for programs that
// show several peers as one.
func (s *Stats) Add(other Stats) {
	s.Requests += other.Requests
	s.Failed += other.Failed
	s.Pending += other.Pending
	s.Sent += other.Sent
	s.Received += other.Received
	s.Sessions += other.Sessions
	s.Regions += other.Regions
	s.ControlIsDown = s.ControlIsDown || other.ControlIsDown
	for i, d := range other.Devices {
		if i == len(s.Devices) {
			s.Devices = append(s.Devices, DeviceStats{Device: d.Device})
		}
		to := &s.Devices[i]
		to.Connections += d.Connections
		to.Made += d.Made
		to.Lost += d.Lost
		to.Read += d.Read
		to.Written += d.Written
		to.Slices += d.Slices
		to.Repeated += d.Repeated
	}
}

// Peers returns an iterator over the peers at the time of the call, dialed and
// accepted.
func (e *Engine) Peers() iter.Seq[*Peer] {
	var all []*Peer
	if e != nil {
		e.mu.Lock()
		all = keys(e.peers)
		e.mu.Unlock()
	}
	return slices.Values(all)
}

// on returns the counts of a device. The caller holds p.mu.
func (p *Peer) on(d *device) *DeviceStats { return &p.perDevice[d.index] }
