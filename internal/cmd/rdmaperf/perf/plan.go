// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/verbena-go/verbena/ibverbs"
)

// plan is what both ends of a test must have in common. It goes with the version,
// behind the zero that ends perftest's text, where perftest has zeros and does
// not look.
type plan struct {
	op         Op
	transport  ibverbs.QPType
	bandwidth  bool
	rdmaCM     bool
	sweep      bool // more than one size
	iterations int
	size       int // the first
}

// planMark is what a plan begins with.
const planMark = 'V'

// planSize is how many bytes there are for it.
const planSize = versionSize - len(version) - 1

// The bits of a plan.
const (
	planBandwidth = 1 << iota
	planRDMACM
	planSweep
)

func newPlan(t *Test, where Where) plan {
	return plan{
		op: t.Op, transport: t.Transport, bandwidth: t.Bandwidth, rdmaCM: where.RDMACM || where.Conn,
		sweep: len(t.Sizes) > 1, iterations: t.Iterations, size: t.Sizes[0],
	}
}

// bytes returns the plan as it is sent.
func (p plan) bytes() []byte {
	flags := byte(p.transport) << 4
	for bit, set := range map[byte]bool{planBandwidth: p.bandwidth, planRDMACM: p.rdmaCM, planSweep: p.sweep} {
		if set {
			flags |= bit
		}
	}
	b := []byte{planMark, byte(slices.Index(Ops, p.op)), flags}
	b = binary.BigEndian.AppendUint32(b, uint32(p.iterations))
	return binary.BigEndian.AppendUint32(b, uint32(p.size))
}

// parsePlan reads what follows a version; ok says whether it is a plan.
func parsePlan(b []byte) (p plan, ok bool) {
	if len(b) != planSize || b[0] != planMark || int(b[1]) >= len(Ops) {
		return p, false
	}
	flags := b[2]
	return plan{
		op: Ops[b[1]], transport: ibverbs.QPType(flags >> 4),
		bandwidth: flags&planBandwidth != 0, rdmaCM: flags&planRDMACM != 0, sweep: flags&planSweep != 0,
		iterations: int(binary.BigEndian.Uint32(b[3:])), size: int(binary.BigEndian.Uint32(b[7:])),
	}, true
}

// compare returns an error if the peer has sent a plan that is another one.
// perftest sends none.
func (p plan) compare(theirs []byte) error {
	if other, ok := parsePlan(theirs); ok && other != p {
		return fmt.Errorf("the ends differ: this one has %v, the peer %v; give both the same flags", p, other)
	}
	return nil
}

// String returns the plan as flags.
func (p plan) String() string {
	text := fmt.Sprintf("-o %s -c %s", p.op, transportName(p.transport))
	if p.bandwidth {
		text += " -b"
	}
	if p.sweep {
		text += " -a"
	} else {
		text += fmt.Sprintf(" -s %d", p.size)
	}
	text += fmt.Sprintf(" -n %d", p.iterations)
	if p.rdmaCM {
		text += " -R"
	}
	return text
}
