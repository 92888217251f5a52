// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/verbena-go/verbena/ibverbs"
)

// plan holds the parameters that both ends of a test must have in common. It is
// sent after the version, behind the zero that ends perftest's text, where
// perftest sends zeros and ignores what it receives.
type plan struct {
	op         Op
	transport  ibverbs.QPType
	bandwidth  bool
	rdmaCM     bool
	sweep      bool // whether the test has more than one size
	both       bool
	qps        int
	iterations int
	seconds    int // duration in seconds instead of a number of iterations, if not 0
	size       int // the first size
}

// planMark is the first byte of a plan.
const planMark = 'W'

// planSize is the number of bytes that are available for a plan.
const planSize = versionSize - len(version) - 1

// The bits of a plan's flags.
const (
	planBandwidth = 1 << iota
	planRDMACM
	planSweep
	planManyQPs // highest bit of the number of queue pairs
)

// The bits in the number with a plan's size, whose lower bits are the size
// minus 1.
const (
	planBoth  = 1 << 31
	planTimed = 1 << 30
)

// MaxQPs is the maximum number of queue pairs in a plan.
const MaxQPs = 64

func newPlan(t *Test, where Where) plan {
	p := plan{
		op: t.Op, transport: t.Transport, bandwidth: t.Bandwidth, rdmaCM: where.RDMACM || where.Conn,
		sweep: len(t.Sizes) > 1, both: t.Both, qps: t.QPs, iterations: t.Iterations, size: t.Sizes[0],
	}
	if t.Duration > 0 {
		p.iterations, p.seconds = 0, int(t.Duration.Seconds())
	}
	return p
}

// bytes returns the plan as it is sent.
func (p plan) bytes() []byte {
	flags := byte(p.transport) << 4
	more := p.qps - 1
	for bit, set := range map[byte]bool{planBandwidth: p.bandwidth, planRDMACM: p.rdmaCM, planSweep: p.sweep, planManyQPs: more >= MaxQPs/2} {
		if set {
			flags |= bit
		}
	}
	size := uint32(p.size - 1)
	if p.both {
		size |= planBoth
	}
	if p.seconds > 0 {
		size |= planTimed
	}
	b := []byte{planMark, byte(slices.Index(Ops, p.op) | more<<3), flags}
	b = binary.BigEndian.AppendUint32(b, uint32(p.iterations+p.seconds))
	return binary.BigEndian.AppendUint32(b, size)
}

// parsePlan parses the bytes after a version. ok is false if they are not a
// plan.
func parsePlan(b []byte) (p plan, ok bool) {
	if len(b) != planSize || b[0] != planMark || int(b[1]&7) >= len(Ops) {
		return p, false
	}
	flags, size := b[2], binary.BigEndian.Uint32(b[7:])
	p = plan{
		op: Ops[b[1]&7], transport: ibverbs.QPType(flags >> 4), qps: int(b[1]>>3) + 1,
		bandwidth: flags&planBandwidth != 0, rdmaCM: flags&planRDMACM != 0, sweep: flags&planSweep != 0, both: size&planBoth != 0,
		iterations: int(binary.BigEndian.Uint32(b[3:])), size: int(size&^(planBoth|planTimed)) + 1,
	}
	if flags&planManyQPs != 0 {
		p.qps += MaxQPs / 2
	}
	if size&planTimed != 0 {
		p.iterations, p.seconds = 0, p.iterations
	}
	return p, true
}

// compare returns an error if the peer has sent a different plan. perftest
// sends none.
func (p plan) compare(theirs []byte) error {
	if other, ok := parsePlan(theirs); ok && other != p {
		return fmt.Errorf("the ends differ: this one has %v, the peer %v; give both the same flags", p, other)
	}
	return nil
}

// String returns the plan as flags.
func (p plan) String() string {
	text := fmt.Sprintf("%s -c %s", testName(p.op, p.bandwidth), transportName(p.transport))
	if p.both {
		text += " -b"
	}
	if p.qps > 1 {
		text += fmt.Sprintf(" -q %d", p.qps)
	}
	if p.sweep {
		text += " -a"
	} else {
		text += fmt.Sprintf(" -s %d", p.size)
	}
	if p.seconds > 0 {
		text += fmt.Sprintf(" -D %d", p.seconds)
	} else {
		text += fmt.Sprintf(" -n %d", p.iterations)
	}
	if p.rdmaCM {
		text += " -R"
	}
	return text
}
