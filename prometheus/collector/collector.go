// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/softroce"
)

// Config says what a Collector collects. The zero Config is right for most
// machines.
type Config struct {
	// Sysfs is where the kernel's sysfs is mounted; empty means stat.Default.
	Sysfs stat.Sysfs
	// NoResources omits the objects of programs. The kernel lists all of
	// them for every scrape, which takes milliseconds for a thousand
	// objects.
	NoResources bool
	// NoSoft omits the devices in user space, of package softroce, that
	// programs of this user have in this network namespace. Each program
	// has one device. Its name on the page ends with the program's process
	// ID: soft0/4711. If VERBENA_NETWORK is set, only the devices of that
	// network are shown.
	NoSoft bool
	// OnError, if not nil, is called with the error of what could not be
	// read. After an error, the page lacks that part, and
	// rdma_collector_success is 0. Scrapes may call OnError concurrently.
	OnError func(error)
}

// Collector is a prometheus.Collector. It reads the counters during each
// scrape, and stores nothing.
type Collector struct{ config Config }

// New returns a Collector. It does not fail on machines without RDMA devices,
// because devices may appear later.
func New(config Config) *Collector {
	config.Sysfs = cmp.Or(config.Sysfs, stat.Default)
	return &Collector{config}
}

// Describe describes no metric, because devices come and go, and drivers have
// counters of their own. A prometheus.Registry does not check such a collector.
func (*Collector) Describe(chan<- *prometheus.Desc) {}

// Metrics that are not counters of the kernel's.
var (
	success = prometheus.NewDesc("rdma_collector_success", "Whether this part of the page could be read.", []string{"source"}, nil)

	active = prometheus.NewDesc("rdma_port_active", "Whether the port can carry data.", []string{"device", "port"}, nil)
	rate   = prometheus.NewDesc("rdma_port_rate_bytes_per_second", "How much the link of the port carries.", []string{"device", "port"}, nil)

	pairs = prometheus.NewDesc("rdma_queue_pairs", "Queue pairs that there are, by the program that has made them.",
		[]string{"device", "program", "type", "state"}, nil)
	queues = prometheus.NewDesc("rdma_completion_queues", "Completion queues that there are, by the program that has made them.",
		[]string{"device", "program"}, nil)
	regions = prometheus.NewDesc("rdma_memory_regions", "Memory regions that there are, by the program that has made them.",
		[]string{"device", "program"}, nil)
	memory = prometheus.NewDesc("rdma_memory_region_bytes", "Length of all memory regions, by the program that has made them.",
		[]string{"device", "program"}, nil)
	domains = prometheus.NewDesc("rdma_protection_domains", "Protection domains that there are, by the program that has made them.",
		[]string{"device", "program"}, nil)
	ids = prometheus.NewDesc("rdma_connection_ids", "Ids of rdma_cm that there are, listeners included, by the program that has made them.",
		[]string{"device", "program", "state"}, nil)
)

// Collect reads the counters and, unless Config.NoResources is set, asks the
// kernel for the objects of programs.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	devices, err := c.config.Sysfs.Devices()
	c.done(to, "counters", err)
	for _, d := range devices {
		name := label(d.Name)
		for _, v := range d.Counters {
			to <- metric("rdma_device_", v, []string{"device"}, name)
		}
		for _, p := range d.Ports {
			collectPort(to, name, p)
		}
	}
	if !c.config.NoResources {
		all, err := stat.AllResources()
		c.done(to, "resources", err)
		collectResources(to, all)
	}
	if !c.config.NoSoft {
		all, err := softroce.Processes(context.Background())
		if errors.Is(err, errors.ErrUnsupported) { // this system has no such devices
			return
		}
		c.done(to, "soft", err)
		for _, p := range all {
			if p.Error != "" && c.config.OnError != nil {
				c.config.OnError(fmt.Errorf("process %d: its device in user space does not answer: %s", p.PID, p.Error))
			}
			for _, d := range p.Devices {
				c.collectSoft(to, p, d)
			}
		}
	}
}

// collectSoft collects the counters of d, a process's device in user space. It
// collects the same metrics as for a Soft-RoCE device of the kernel.
func (c *Collector) collectSoft(to chan<- prometheus.Metric, p softroce.Process, d softroce.Device) {
	device, owner := fmt.Sprintf("%s/%d", d.Name, p.PID), label(p.Program)
	if p.PID == 0 { // a process in another PID namespace
		device = d.Name + "/" + d.GUID
	}
	device = label(device)
	up := 0.0
	if d.State == "active" {
		up = 1
	}
	to <- prometheus.MustNewConstMetric(active, prometheus.GaugeValue, up, device, "1")
	for _, n := range []struct {
		name, help string
		value      uint64
	}{
		{"sent_pkts", "Packets sent.", d.Counters.PacketsSent},
		{"rcvd_pkts", "Packets received.", d.Counters.PacketsReceived},
		{"np_ecn_marked_roce_packets", "Packets received that switches have marked for congestion.", d.Counters.PacketsMarked},
		{"np_cnp_sent", "Congestion notifications sent, for packets that switches have marked.", d.Counters.NotificationsSent},
		{"rp_cnp_handled", "Congestion notifications received, for which this port slowed down.", d.Counters.NotificationsReceived},
		{"completer_retry_err", "Times that requests were sent again, from the oldest one without an answer on.", d.Counters.Timeouts},
		{"packet_seq_err", "Negative acknowledgements received: the peer has missed a packet.", d.Counters.SequenceErrors},
		{"rcvd_rnr_err", "Negative acknowledgements received: the peer had no receive posted.", d.Counters.ReceiversNotReady},
		{"implied_nak_seq_err", "Times that the answer to a later request showed that one to a read or atomic was lost.", d.Counters.MissedAnswers},
	} {
		counter := stat.Counter{Group: stat.Hardware, Name: n.name, Value: n.value, Unit: stat.Packets, Help: n.help}
		to <- metric("rdma_port_", counter, []string{"device", "port"}, device, "1")
	}
	if c.config.NoResources {
		return
	}
	for _, n := range []struct {
		desc  *prometheus.Desc
		value int
	}{{queues, d.Objects.CompletionQueues}, {regions, d.Objects.MemoryRegions}, {domains, d.Objects.ProtectionDomains}} {
		to <- prometheus.MustNewConstMetric(n.desc, prometheus.GaugeValue, float64(n.value), device, owner)
	}
	type kind struct{ of, state string }
	counts := map[kind]float64{}
	for _, q := range d.QueuePairs {
		counts[kind{q.Type, q.State}]++
	}
	for k, n := range counts {
		to <- prometheus.MustNewConstMetric(pairs, prometheus.GaugeValue, n, device, owner, k.of, k.state)
	}
}

// done adds the metric that says whether a part of the page, source, could be
// read. err is the error of reading it, or nil.
func (c *Collector) done(to chan<- prometheus.Metric, source string, err error) {
	value := 1.0
	if err != nil {
		value = 0
		if c.config.OnError != nil {
			c.config.OnError(err)
		}
	}
	to <- prometheus.MustNewConstMetric(success, prometheus.GaugeValue, value, source)
}

func collectPort(to chan<- prometheus.Metric, device string, p stat.Port) {
	port := strconv.Itoa(p.Port)
	if p.State != "" {
		up := 0.0
		if strings.HasPrefix(p.State, "ACTIVE") { // ACTIVE_DEFER is a link that recovers from errors
			up = 1
		}
		to <- prometheus.MustNewConstMetric(active, prometheus.GaugeValue, up, device, port)
	}
	if p.Rate > 0 {
		const bitsOfByte = 8
		to <- prometheus.MustNewConstMetric(rate, prometheus.GaugeValue, float64(p.Rate)/bitsOfByte, device, port)
	}
	for _, v := range p.Counters {
		to <- metric("rdma_port_", v, []string{"device", "port"}, device, port)
	}
}

// metric returns a counter. Its name begins with prefix.
func metric(prefix string, c stat.Counter, labels []string, values ...string) prometheus.Metric {
	name, help, kind := clean(strings.TrimPrefix(c.Name, "port_")), c.Help, prometheus.CounterValue
	switch {
	case c.Group == stat.Standard:
	case c.Group == stat.Hardware:
		name = "hw_" + name
	default: // the counter is of a kind of message of the connection manager; one metric has all kinds
		labels, values = append(labels, "message"), append(values, label(c.Name))
		name, help = clean(string(c.Group)), messages[c.Group]
	}
	switch c.Unit {
	case stat.Unknown:
		name, help, kind = prefix+name, "Of the driver, which alone knows what it means.", prometheus.UntypedValue
	case stat.Bytes:
		if !strings.HasSuffix(name, "_bytes") {
			name += "_bytes"
		}
		fallthrough
	default:
		name = prefix + name + "_total"
	}
	return prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, labels, nil), kind, float64(c.Value), values...)
}

// messages describes the groups of the connection manager's messages.
var messages = map[stat.Group]string{
	stat.CMSent:    "Messages of the connection manager sent, also again.",
	stat.CMRetried: "Messages of the connection manager sent again, as no answer came in time.",
	stat.CMTaken:   "Messages of the connection manager received, also again.",
	stat.CMRepeats: "Messages of the connection manager received again: the peer got no answer in time.",
}

// clean returns name, which may be any text, in the form that a part of a
// metric's name must have.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
}

// collectResources adds up the objects of each program, so that there are few
// metrics for many objects.
func collectResources(to chan<- prometheus.Metric, all stat.Resources) {
	type key struct {
		desc   *prometheus.Desc
		labels [4]string
	}
	sums := map[key]float64{}
	add := func(desc *prometheus.Desc, n float64, labels ...string) {
		k := key{desc: desc}
		for i, l := range labels {
			k.labels[i] = label(l)
		}
		sums[k] += n
	}
	for _, o := range all.QueuePairs {
		add(pairs, 1, o.Device, program(o.Owner), o.Type, o.State)
	}
	for _, o := range all.CompletionQueues {
		add(queues, 1, o.Device, program(o.Owner))
	}
	for _, o := range all.MemoryRegions {
		add(regions, 1, o.Device, program(o.Owner))
		add(memory, float64(o.Length), o.Device, program(o.Owner))
	}
	for _, o := range all.ProtectionDomains {
		add(domains, 1, o.Device, program(o.Owner))
	}
	for _, o := range all.ConnectionIDs {
		add(ids, 1, o.Device, program(o.Owner), o.State)
	}
	count := map[*prometheus.Desc]int{pairs: 4, queues: 2, regions: 2, memory: 2, domains: 2, ids: 3}
	for k, n := range sums {
		to <- prometheus.MustNewConstMetric(k.desc, prometheus.GaugeValue, n, k.labels[:count[k.desc]]...)
	}
}

// program returns the label for an owner. Parts of the kernel are in brackets,
// as in the output of ps.
func program(o stat.Owner) string {
	if o.Kernel != "" {
		return "[" + o.Kernel + "]"
	}
	return o.Program
}

// label returns name as the value of a label. Prometheus requires valid UTF-8.
func label(name string) string { return strings.ToValidUTF8(name, "?") }
