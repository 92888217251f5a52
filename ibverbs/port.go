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

// PortAttr describes a port.
type PortAttr struct {
	State          PortState
	PhysicalState  PhysState
	LinkLayer      LinkLayer
	MaxMTU         MTU
	ActiveMTU      MTU
	ActiveWidth    LinkWidth
	ActiveSpeed    LinkSpeed // of one lane
	GIDTableLen    int       // entries, including empty ones
	PKeyTableLen   int       // entries, including empty ones
	MaxMessageSize uint32    // bytes
	LID            uint16    // 0 on Ethernet
	SMLID          uint16    // LID of the subnet manager
	SMSL           uint8     // service level to reach the subnet manager
	LMC            uint8     // the port has 1<<LMC LIDs, starting with LID
	MaxVLs         int       // virtual lanes
	SubnetTimeout  uint8     // n: the longest delay through the subnet is 4.096 us * 2^n
	InitTypeReply  uint8     // what the subnet manager preserved when it initialised the port
	GRHRequired    bool      // addresses need a GID even within the subnet
	BadPKeys       uint32    // packets received with a wrong P_Key
	QKeyViolations uint32    // datagrams received with a wrong Q_Key
	Capabilities   libibverbs.PortCapFlags
	Capabilities2  libibverbs.PortCapFlags2
}

// Rate returns the speed of all lanes together in Gb/s, or 0 if it is unknown.
func (p PortAttr) Rate() float64 { return p.ActiveSpeed.Rate() * float64(p.ActiveWidth.Lanes()) }

// virtualLanes maps C's code to a number of virtual lanes.
var virtualLanes = [...]int{1: 1, 2: 2, 3: 4, 4: 8, 5: 15}

// QueryPort returns the attributes of a port; ports count from 1. See
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

// QueryPortSpeed returns the effective speed of a port in Gb/s, which may be
// less than PortAttr.Rate; see ibv_query_port_speed(3). It fails with
// errors.ErrUnsupported before rdma-core 62, or if the device cannot tell.
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
	return float64(speed) / 10, nil // C counts in units of 100 Mb/s
}

// portNumber checks a port number before converting it to C's smaller type.
func portNumber(op string, d *Device, port int) (uint8, error) {
	if err := inRange("port", port, 1, 255); err != nil {
		return 0, cerr.Argument(op, d.Name(), err)
	}
	return uint8(port), nil
}

func portName(c *Device, port int) string { return fmt.Sprintf("%s port %d", c.Name(), port) }

// PhysState is the physical state of a port's link.
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

// MarshalText returns what String returns.
func (s PhysState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the text that String returns.
func (s *PhysState) UnmarshalText(text []byte) error { return parseName(&physStates, text, s) }

// LinkWidth encodes the number of lanes of a link; see Lanes.
type LinkWidth uint8

// The link widths.
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

// Lanes returns the number of lanes, or 0 if it is unknown.
func (w LinkWidth) Lanes() int {
	return map[LinkWidth]int{LinkWidth1X: 1, LinkWidth2X: 2, LinkWidth4X: 4, LinkWidth8X: 8, LinkWidth12X: 12}[w]
}

// String returns the number of lanes, such as 4X.
func (w LinkWidth) String() string { return linkWidths.String(int64(w)) }

// MarshalText returns what String returns.
func (w LinkWidth) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText parses the text that String returns.
func (w *LinkWidth) UnmarshalText(text []byte) error { return parseName(&linkWidths, text, w) }

// LinkSpeed encodes the speed of one lane of a link; see Rate.
type LinkSpeed uint32

// The speeds of one lane.
const (
	SpeedSDR   LinkSpeed = 1   // 2.5 Gb/s
	SpeedDDR   LinkSpeed = 2   // 5 Gb/s
	SpeedQDR   LinkSpeed = 4   // 10 Gb/s
	SpeedFDR10 LinkSpeed = 8   // 10 Gb/s
	SpeedFDR   LinkSpeed = 16  // 14 Gb/s
	SpeedEDR   LinkSpeed = 32  // 25 Gb/s
	SpeedHDR   LinkSpeed = 64  // 50 Gb/s
	SpeedNDR   LinkSpeed = 128 // 100 Gb/s
	SpeedXDR   LinkSpeed = 256 // 200 Gb/s
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

// Rate returns the nominal speed in Gb/s, or 0 if it is unknown. SignalingRate
// and Throughput return the exact figures.
func (s LinkSpeed) Rate() float64 {
	return map[LinkSpeed]float64{
		SpeedSDR: 2.5, SpeedDDR: 5, SpeedQDR: 10, SpeedFDR10: 10, SpeedFDR: 14,
		SpeedEDR: 25, SpeedHDR: 50, SpeedNDR: 100, SpeedXDR: 200,
	}[s]
}

// SignalingRate returns the bit rate of a lane on the wire in Gb/s, or 0 if it
// is unknown.
func (s LinkSpeed) SignalingRate() float64 { return laneRates[s].signaling }

// Throughput returns the part of the signaling rate that line code and error
// correction leave for packets, in Gb/s, or 0 if it is unknown.
func (s LinkSpeed) Throughput() float64 {
	r := laneRates[s]
	return r.signaling * r.data
}

// laneRates maps a speed to its signaling rate in Gb/s and the fraction of it
// that is data.
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

// The fractions of the bits on a wire that are data.
const (
	code8b10b    = 8. / 10
	code64b66b   = 64. / 66
	code256b257b = 256. / 257 * 514 / 544 // including Reed-Solomon error correction
)

// String returns the name of the speed, such as HDR.
func (s LinkSpeed) String() string { return linkSpeeds.String(int64(s)) }

// MarshalText returns what String returns.
func (s LinkSpeed) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the text that String returns.
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

// MarshalText returns the MTU in bytes, as String does.
func (m MTU) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText parses an MTU in bytes: 256, 512, 1024, 2048 or 4096, or 0 for
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

// NetDev returns the name of a port's network interface, for RoCE or IP over
// InfiniBand. It returns "" if the port has none in this network namespace.
func (d *Device) NetDev(port int) (string, error) {
	entries, err := d.QueryPortGIDs(port)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.NetDev != "" { // the first is not a VLAN's
			return e.NetDev, nil
		}
	}
	return kernelSysfs.netDev(d.Name(), port)
}

// netDevs maps each of the device's network interfaces to its port.
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

// netDev returns the first network interface of the device's hardware that
// belongs to the port, or "" if there is none.
func (s sysfs) netDev(device string, port int) (string, error) {
	dir := filepath.Join(string(s), device, "device", "net")
	interfaces, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, i := range interfaces { // sorted by name: ib0 comes before ib0.8001
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
