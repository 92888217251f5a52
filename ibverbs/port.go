package ibverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/enum"
)

// PortAttr is the state of a port.
type PortAttr struct {
	State          PortState
	PhysicalState  PhysState
	LinkLayer      LinkLayer
	MaxMTU         MTU
	ActiveMTU      MTU
	ActiveWidth    LinkWidth
	ActiveSpeed    LinkSpeed // of a lane
	GIDTableLen    int       // entries, empty ones too
	PKeyTableLen   int
	MaxMessageSize uint32 // bytes
	LID            uint16 // 0 on Ethernet
	SMLID          uint16 // of the subnet manager
	SMSL           uint8  // the service level to reach it
	LMC            uint8  // the port has 1<<LMC local identifiers, from LID on
	MaxVLs         int    // virtual lanes
	SubnetTimeout  uint8  // 4.096 us * 2^n is the longest way through the subnet
	InitTypeReply  uint8  // what the subnet manager kept when it initialised the port
	GRHRequired    bool   // addresses on this port need a GID even within the subnet
	BadPKeys       uint32 // packets of other partitions
	QKeyViolations uint32 // datagrams with a wrong key
	Capabilities   libibverbs.PortCapFlags
	Capabilities2  libibverbs.PortCapFlags2
}

// Rate is what the link carries with all its lanes, in Gb/s, 0 if that is not
// known.
func (p PortAttr) Rate() float64 { return p.ActiveSpeed.Rate() * float64(p.ActiveWidth.Lanes()) }

// virtualLanes is by the number that C has for them.
var virtualLanes = [...]int{1: 1, 2: 2, 3: 4, 4: 8, 5: 15}

// QueryPort returns the state of a port, the first of which is 1; see
// ibv_query_port(3).
func (d *Device) QueryPort(port int) (PortAttr, error) {
	if err := d.self().Use(); err != nil {
		return PortAttr{}, err
	}
	defer d.object.Done()
	n, err := portNumber("ibv_query_port", d, port)
	if err != nil {
		return PortAttr{}, err
	}
	var a libibverbs.PortAttr
	if err := libibverbs.QueryPort(d.raw, n, &a); err != nil {
		return PortAttr{}, wrap(portName(d, port), err)
	}
	return portAttr(&a), nil
}

func portAttr(a *libibverbs.PortAttr) PortAttr {
	speed := a.ActiveSpeedEx
	if speed == 0 { // an older library
		speed = uint32(a.ActiveSpeed)
	}
	lanes := 0
	if int(a.MaxVlNum) < len(virtualLanes) {
		lanes = virtualLanes[a.MaxVlNum]
	}
	return PortAttr{
		State:          a.State,
		PhysicalState:  PhysState(a.PhysState),
		LinkLayer:      LinkLayer(a.LinkLayer),
		MaxMTU:         MTU(a.MaxMtu),
		ActiveMTU:      MTU(a.ActiveMtu),
		ActiveWidth:    LinkWidth(a.ActiveWidth),
		ActiveSpeed:    LinkSpeed(speed),
		GIDTableLen:    int(a.GidTblLen),
		PKeyTableLen:   int(a.PkeyTblLen),
		MaxMessageSize: a.MaxMsgSz,
		LID:            a.Lid,
		SMLID:          a.SmLid,
		SMSL:           a.SmSl,
		LMC:            a.Lmc,
		MaxVLs:         lanes,
		SubnetTimeout:  a.SubnetTimeout,
		InitTypeReply:  a.InitTypeReply,
		GRHRequired:    uint32(a.Flags)&uint32(libibverbs.IBV_QPF_GRH_REQUIRED) != 0,
		BadPKeys:       a.BadPkeyCntr,
		QKeyViolations: a.QkeyViolCntr,
		Capabilities:   libibverbs.PortCapFlags(a.PortCapFlags),
		Capabilities2:  libibverbs.PortCapFlags2(a.PortCapFlags2),
	}
}

// QueryPortSpeed returns what a port carries in effect, in Gb/s, which
// may be less than PortAttr.Rate. Libraries before rdma-core 62 and devices
// that cannot tell give errors.ErrUnsupported; see ibv_query_port_speed(3).
func (d *Device) QueryPortSpeed(port int) (float64, error) {
	if err := d.self().Use(); err != nil {
		return 0, err
	}
	defer d.object.Done()
	n, err := portNumber("ibv_query_port_speed", d, port)
	if err != nil {
		return 0, err
	}
	speed, err := libibverbs.QueryPortSpeed(d.raw, uint32(n))
	if err != nil {
		return 0, wrap(portName(d, port), err)
	}
	return float64(speed) / 10, nil // of 100 Mb/s
}

// portNumber checks a port number before it is cut down to what C takes.
func portNumber(op string, d *Device, port int) (uint8, error) {
	if err := inRange("port", port, 1, 255); err != nil {
		return 0, cerr.Argument(op, d.Name(), err)
	}
	return uint8(port), nil
}

func portName(c *Device, port int) string { return fmt.Sprintf("%s port %d", c.Name(), port) }

// PhysState is the state of a port's link below its logical state.
type PhysState uint8

// The physical states of a port, as the InfiniBand specification numbers them.
const (
	PhysSleep             PhysState = 1
	PhysPolling           PhysState = 2
	PhysDisabled          PhysState = 3
	PhysTraining          PhysState = 4
	PhysLinkUp            PhysState = 5
	PhysLinkErrorRecovery PhysState = 6
	PhysTest              PhysState = 7
)

var physStates = enum.Values{Type: "PhysState", Names: []enum.Name{
	{Value: int64(PhysSleep), Name: "Sleep"},
	{Value: int64(PhysPolling), Name: "Polling"},
	{Value: int64(PhysDisabled), Name: "Disabled"},
	{Value: int64(PhysTraining), Name: "PortConfigurationTraining"},
	{Value: int64(PhysLinkUp), Name: "LinkUp"},
	{Value: int64(PhysLinkErrorRecovery), Name: "LinkErrorRecovery"},
	{Value: int64(PhysTest), Name: "Phy Test"},
}}

// String returns the kernel's name of the state.
func (s PhysState) String() string { return physStates.String(int64(s)) }

// MarshalText is String.
func (s PhysState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what String gives.
func (s *PhysState) UnmarshalText(text []byte) error { return parseName(&physStates, text, s) }

// LinkWidth is how many lanes a link has, as C encodes it.
type LinkWidth uint8

// The widths of links.
const (
	LinkWidth1X  LinkWidth = 1
	LinkWidth2X  LinkWidth = 16
	LinkWidth4X  LinkWidth = 2
	LinkWidth8X  LinkWidth = 4
	LinkWidth12X LinkWidth = 8
)

var linkWidths = enum.Values{Type: "LinkWidth", Names: []enum.Name{
	{Value: int64(LinkWidth1X), Name: "1X"},
	{Value: int64(LinkWidth2X), Name: "2X"},
	{Value: int64(LinkWidth4X), Name: "4X"},
	{Value: int64(LinkWidth8X), Name: "8X"},
	{Value: int64(LinkWidth12X), Name: "12X"},
}}

// Lanes returns the number of lanes, 0 if it is not known.
func (w LinkWidth) Lanes() int {
	return map[LinkWidth]int{LinkWidth1X: 1, LinkWidth2X: 2, LinkWidth4X: 4, LinkWidth8X: 8, LinkWidth12X: 12}[w]
}

// String returns the number of lanes, as in 4X.
func (w LinkWidth) String() string { return linkWidths.String(int64(w)) }

// MarshalText is String.
func (w LinkWidth) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads what String gives.
func (w *LinkWidth) UnmarshalText(text []byte) error { return parseName(&linkWidths, text, w) }

// LinkSpeed is the speed of one lane.
type LinkSpeed uint32

// The speeds of lanes, with their Gb/s.
const (
	SpeedSDR   LinkSpeed = 1   // 2.5
	SpeedDDR   LinkSpeed = 2   // 5
	SpeedQDR   LinkSpeed = 4   // 10
	SpeedFDR10 LinkSpeed = 8   // 10
	SpeedFDR   LinkSpeed = 16  // 14
	SpeedEDR   LinkSpeed = 32  // 25
	SpeedHDR   LinkSpeed = 64  // 50
	SpeedNDR   LinkSpeed = 128 // 100
	SpeedXDR   LinkSpeed = 256 // 200
)

var linkSpeeds = enum.Values{Type: "LinkSpeed", Names: []enum.Name{
	{Value: int64(SpeedSDR), Name: "SDR"},
	{Value: int64(SpeedDDR), Name: "DDR"},
	{Value: int64(SpeedQDR), Name: "QDR"},
	{Value: int64(SpeedFDR10), Name: "FDR10"},
	{Value: int64(SpeedFDR), Name: "FDR"},
	{Value: int64(SpeedEDR), Name: "EDR"},
	{Value: int64(SpeedHDR), Name: "HDR"},
	{Value: int64(SpeedNDR), Name: "NDR"},
	{Value: int64(SpeedXDR), Name: "XDR"},
}}

// Rate returns the speed in Gb/s that goes by the name, 0 if it is not known;
// see SignalingRate and Throughput for what it is made of.
func (s LinkSpeed) Rate() float64 {
	return map[LinkSpeed]float64{
		SpeedSDR: 2.5, SpeedDDR: 5, SpeedQDR: 10, SpeedFDR10: 10, SpeedFDR: 14,
		SpeedEDR: 25, SpeedHDR: 50, SpeedNDR: 100, SpeedXDR: 200,
	}[s]
}

// SignalingRate returns how fast a lane's bits follow each other on the wire, in
// Gb/s, 0 if it is not known.
func (s LinkSpeed) SignalingRate() float64 { return laneRates[s].signaling }

// Throughput returns what the line code and error correction leave of the
// signaling rate for packets, in Gb/s, 0 if it is not known.
func (s LinkSpeed) Throughput() float64 {
	r := laneRates[s]
	return r.signaling * r.data
}

// laneRates has the signaling rate, and the part of it that is data.
var laneRates = map[LinkSpeed]struct{ signaling, data float64 }{
	SpeedSDR:   {2.5, code8b10b},
	SpeedDDR:   {5, code8b10b},
	SpeedQDR:   {10, code8b10b},
	SpeedFDR10: {10.3125, code64b66b},
	SpeedFDR:   {14.0625, code64b66b},
	SpeedEDR:   {25.78125, code64b66b},
	SpeedHDR:   {53.125, code256b257b},
	SpeedNDR:   {106.25, code256b257b},
	SpeedXDR:   {212.5, code256b257b},
}

// The parts of the bits on a wire that are data.
const (
	code8b10b    = 8. / 10
	code64b66b   = 64. / 66
	code256b257b = 256. / 257 * 514 / 544 // and Reed-Solomon error correction
)

// String returns the name of the speed, such as HDR.
func (s LinkSpeed) String() string { return linkSpeeds.String(int64(s)) }

// MarshalText is String.
func (s LinkSpeed) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what String gives.
func (s *LinkSpeed) UnmarshalText(text []byte) error { return parseName(&linkSpeeds, text, s) }

func parseName[T ~uint8 | ~uint32](names *enum.Values, text []byte, to *T) error {
	v, err := names.Parse(string(text))
	if err != nil {
		return err
	}
	if int64(T(v)) != v {
		return fmt.Errorf("%s: %d is out of range", names.Type, v)
	}
	*to = T(v)
	return nil
}

// MarshalText gives the unit in bytes.
func (m MTU) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads a unit in bytes: 256, 512, 1024, 2048 or 4096, or 0 for
// none.
func (m *MTU) UnmarshalText(text []byte) error {
	bytes, err := strconv.Atoi(string(text))
	if err == nil {
		for v := MTU(0); v <= 5; v++ {
			if v.Bytes() == bytes {
				*m = v
				return nil
			}
		}
	}
	return fmt.Errorf("%q is no MTU", text)
}

// NetDev returns the name of a port's network interface: that of RoCE, or of
// IP over InfiniBand. It is empty if the port has none in this network
// namespace.
func (d *Device) NetDev(port int) (string, error) {
	entries, err := d.QueryPortGIDs(port)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.NetDev != "" { // the first is not that of a VLAN
			return e.NetDev, nil
		}
	}
	return kernelSysfs.netDev(d.Name(), port)
}

// netDevs returns all of the device's network interfaces with their ports.
func (d *Device) netDevs() (map[string]int, error) {
	interfaces := map[string]int{}
	entries, err := d.QueryGIDTable()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.NetDev != "" {
			interfaces[e.NetDev] = e.Port
		}
	}
	ports, err := d.portNumbers()
	if err != nil {
		return nil, err
	}
	for _, port := range ports {
		name, err := kernelSysfs.netDev(d.Name(), port)
		if err != nil {
			return nil, err
		}
		if _, known := interfaces[name]; !known && name != "" {
			interfaces[name] = port
		}
	}
	return interfaces, nil
}

// netDev returns the first network interface of the hardware below the device
// that belongs to the port, empty if there is none.
func (s sysfs) netDev(device string, port int) (string, error) {
	dir := filepath.Join(string(s), device, "device", "net")
	interfaces, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, i := range interfaces { // in the order of names: ib0 comes before ib0.8001
		b, err := os.ReadFile(filepath.Join(dir, i.Name(), "dev_port"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // renamed or gone in the meantime
		}
		if err != nil {
			return "", err
		}
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n == port-1 {
			return i.Name(), nil
		}
	}
	return "", nil
}
