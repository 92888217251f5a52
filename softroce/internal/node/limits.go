// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"fmt"
	"math"
	"math/bits"
	"os"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// LimitsVariable is the environment variable that has the limits of the device
// if SetLimits was not called.
const LimitsVariable = "VERBENA_LIMITS"

// SetLimits limits what the node's devices have. options are the name of a set,
// or limits such as "sge=1,inline=0", or the name of a set and limits that
// differ from it. SetLimits fails for unknown names and for values out of
// range. It also fails after the first use of the device, unless these limits
// are in use.
func SetLimits(options string) error {
	wanted, err := parseLimits(options)
	if err != nil {
		return err
	}
	choices.Lock()
	defer choices.Unlock()
	if choices.made && (choices.limits == nil || *choices.limits != wanted) {
		return errInUse
	}
	choices.limits = &wanted
	return nil
}

// CheckLimits fails if the environment has limits that SetLimits would refuse.
func CheckLimits() error {
	_, err := limitsOfEnvironment()
	return err
}

// chosenLimits returns the limits that SetLimits or the environment chose. The
// choice is final.
func chosenLimits() (engine.Limits, error) {
	choices.Lock()
	defer choices.Unlock()
	choices.made = true
	if choices.limits != nil {
		return *choices.limits, nil
	}
	l, err := limitsOfEnvironment()
	if err == nil {
		choices.limits = &l
	}
	return l, err
}

// limitsOfEnvironment returns the limits that the environment chooses.
func limitsOfEnvironment() (engine.Limits, error) {
	text := os.Getenv(LimitsVariable)
	l, err := parseLimits(text)
	if err != nil {
		return l, fmt.Errorf("%s=%s: %w", LimitsVariable, text, err)
	}
	return l, nil
}

// limit is a limit that a program can set by its name.
type limit struct {
	name string
	min  uint32 // smallest value; the largest is that of the largest device
	of   func(l *engine.Limits) *uint32
	flag func(l *engine.Limits) *bool // for a limit that is 0 or 1, instead of of
}

// limits has all limits, in the order of the documentation.
var limits = []limit{
	{name: "sge", min: 1, of: func(l *engine.Limits) *uint32 { return &l.SGE }},
	{name: "read-sge", min: 1, of: func(l *engine.Limits) *uint32 { return &l.ReadSGE }},
	{name: "inline", of: func(l *engine.Limits) *uint32 { return &l.Inline }},
	{name: "reads", of: func(l *engine.Limits) *uint32 { return &l.Reads }},
	{name: "wr", min: 1, of: func(l *engine.Limits) *uint32 { return &l.WR }},
	{name: "srq-wr", min: 1, of: func(l *engine.Limits) *uint32 { return &l.SRQWR }},
	{name: "cqe", min: 1, of: func(l *engine.Limits) *uint32 { return &l.CQE }},
	{name: "qps", min: 1, of: func(l *engine.Limits) *uint32 { return &l.QPs }},
	{name: "cqs", min: 1, of: func(l *engine.Limits) *uint32 { return &l.CQs }},
	{name: "srqs", of: func(l *engine.Limits) *uint32 { return &l.SRQs }},
	{name: "tags", of: func(l *engine.Limits) *uint32 { return &l.Tags }},
	{name: "pds", min: 1, of: func(l *engine.Limits) *uint32 { return &l.PDs }},
	{name: "mrs", min: 1, of: func(l *engine.Limits) *uint32 { return &l.MRs }},
	{name: "mws", of: func(l *engine.Limits) *uint32 { return &l.MWs }},
	{name: "ahs", of: func(l *engine.Limits) *uint32 { return &l.AHs }},
	{name: "groups", of: func(l *engine.Limits) *uint32 { return &l.Groups }},
	{name: "dm", of: func(l *engine.Limits) *uint32 { return &l.DM }},
	{name: "odp", of: func(l *engine.Limits) *uint32 { return &l.ODP }},
	{name: "mtu"},
	{name: "atomics", flag: func(l *engine.Limits) *bool { return &l.Atomics }},
	{name: "flush", flag: func(l *engine.Limits) *bool { return &l.Flush }},
	{name: "atomic-write", flag: func(l *engine.Limits) *bool { return &l.AtomicWrite }},
	{name: "imm", flag: func(l *engine.Limits) *bool { return &l.Imm }},
	{name: "rc", flag: func(l *engine.Limits) *bool { return &l.RC }},
	{name: "uc", flag: func(l *engine.Limits) *bool { return &l.UC }},
	{name: "ud", flag: func(l *engine.Limits) *bool { return &l.UD }},
	{name: "xrc", flag: func(l *engine.Limits) *bool { return &l.XRC }},
	{name: "null-mr", flag: func(l *engine.Limits) *bool { return &l.NullMR }},
	{name: "iwarp", flag: func(l *engine.Limits) *bool { return &l.IWARP }},
	{name: "client-first", flag: func(l *engine.Limits) *bool { return &l.ClientFirst }},
	{name: "counters", of: func(l *engine.Limits) *uint32 { return &l.Counters }},
	{name: "parent-domains", flag: func(l *engine.Limits) *bool { return &l.ParentDomains }},
	{name: "imports", flag: func(l *engine.Limits) *bool { return &l.Imports }},
	{name: "pacing", flag: func(l *engine.Limits) *bool { return &l.Pacing }},
	{name: "rnr", flag: func(l *engine.Limits) *bool { return &l.RNR }},
	{name: "solicited", flag: func(l *engine.Limits) *bool { return &l.Solicited }},
	{name: "query", of: func(l *engine.Limits) *uint32 { return &l.Query }},
	{name: "late", of: func(l *engine.Limits) *uint32 { return &l.Late }},
}

// set sets the limit in l. It fails if value is out of range.
func (m *limit) set(l *engine.Limits, value string) error {
	n, err := strconv.ParseUint(value, 10, 32)
	switch {
	case m.flag != nil:
		if value != "0" && value != "1" {
			return fmt.Errorf("%s is %q: want 0 or 1", m.name, value)
		}
		*m.flag(l) = n == 1
	case m.of == nil: // the MTU
		if err != nil || bits.OnesCount64(n) != 1 || n < 256 || n > 4096 {
			return fmt.Errorf("%s is %q: want 256, 512, 1024, 2048 or 4096", m.name, value)
		}
		l.MTU = libibverbs.Mtu(bits.Len64(n / 256))
	default:
		largest := engine.Largest()
		if most := *m.of(&largest); err != nil || n > math.MaxUint32 || uint32(n) < m.min || uint32(n) > most {
			return fmt.Errorf("%s is %q: want a number from %d to %d", m.name, value, m.min, most)
		}
		*m.of(l) = uint32(n)
	}
	return nil
}

// lacking is what no set has.
const lacking = "xrc=0,dm=0,odp=0,null-mr=0,tags=0,flush=0,atomic-write=0,counters=0,imports=0,"

// limitSets has the named sets, in the order of the documentation, as text that
// parseLimits takes.
var limitSets = []struct{ name, limits string }{
	{"smallest", lacking + "sge=1,read-sge=1,inline=0,reads=1,wr=256,srq-wr=256,cqe=1024,srqs=0,mws=0,groups=0,mtu=256,atomics=0,uc=0,parent-domains=0,pacing=0"},
	{"iwarp", lacking + "read-sge=1,ahs=0,groups=0,atomics=0,imm=0,uc=0,ud=0,parent-domains=0,pacing=0,iwarp=1,client-first=1"},
	{"bnxt_re", lacking + "sge=6,read-sge=6,inline=96,mws=0,groups=0,uc=0,parent-domains=0"},
	{"cxgb4", "iwarp,client-first=0,sge=4,inline=280,reads=32,wr=8189,srq-wr=8189,cqe=65518,mws=0"},
	{"erdma", "iwarp,client-first=0,sge=1,inline=96,wr=8192,srqs=0,mws=0,imm=1"},
	{"efa", lacking + "sge=2,read-sge=1,inline=32,reads=0,srqs=0,mws=0,groups=0,atomics=0,rc=0,uc=0,pacing=0,solicited=0,query=1,late=0"},
	{"hns", lacking + "inline=32,mws=0,ahs=0,groups=0,uc=0,ud=0,pacing=0"},
	{"i40iw", "iwarp,client-first=0,sge=3,inline=48,reads=63,wr=895,cqe=1048574,srqs=0,pds=32768,mws=0"},
	{"ionic", lacking + "sge=8,read-sge=8,reads=16,cqe=65435,srqs=0,groups=0,uc=0"},
	{"irdma", lacking + "sge=13,read-sge=13,inline=101,reads=127,wr=4063,srqs=0,mws=0,atomics=0,uc=0,parent-domains=0,pacing=0"},
	{"mana", lacking + "inline=0,srqs=0,mws=0,ahs=0,groups=0,atomics=0,uc=0,ud=0,parent-domains=0,pacing=0,solicited=0,query=0,late=0"},
	{"siw", "iwarp,client-first=0,sge=6,inline=80,mws=0"},
}

// parseLimits returns the limits that text chooses. The empty text chooses
// those of the largest device.
func parseLimits(text string) (engine.Limits, error) {
	l := engine.Largest()
	if text == "" {
		return l, nil
	}
	err := setLimits(&l, expand(text))
	return l, err
}

// expand replaces the name of a set, with which text may begin, by the set's
// limits.
func expand(text string) string {
	first, rest, more := strings.Cut(text, ",")
	for _, s := range limitSets {
		if s.name != first {
			continue
		}
		if !more {
			return expand(s.limits)
		}
		return expand(s.limits) + "," + rest
	}
	return text
}

// setLimits sets the limits in l that text has, such as "sge=1,inline=0".
func setLimits(l *engine.Limits, text string) error {
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		m := findLimit(name)
		if m == nil {
			return fmt.Errorf("unknown limit %q: want %s; or first a set, one of %s", part, limitNames(), setNames())
		}
		if err := m.set(l, value); err != nil {
			return err
		}
	}
	return nil
}

// findLimit returns the limit with that name, or nil.
func findLimit(name string) *limit {
	for i := range limits {
		if limits[i].name == name {
			return &limits[i]
		}
	}
	return nil
}

// limitNames lists the names of limits, for errors.
func limitNames() string {
	var names []string
	for _, m := range limits {
		names = append(names, m.name+"=N")
	}
	return strings.Join(names, ", ")
}

// setNames lists the names of sets, for errors.
func setNames() string {
	var names []string
	for _, s := range limitSets {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}
