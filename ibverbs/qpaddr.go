package ibverbs

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// QPAddr is what the other side needs to connect with a queue pair. It
// can be sent as a line of text or as JSON, over a socket for example.
type QPAddr struct {
	QPNum     uint32 // the queue pair's number, 24 bits
	PSN       uint32 // of the first packet that it sends, 24 bits
	QKey      uint32 // that datagrams to it need; 0 for connected queue pairs
	LID       uint16 // of the port, 0 for RoCE
	GID       GID    // of the port
	MTU       MTU    // the port's active one
	ReadDepth int    // RDMA reads and atomics that it answers at a time
	Port      int    // on its own device
	GIDIndex  int    // in its own port's table
}

// QPAddrOptions say which address of the device a queue pair takes.
type QPAddrOptions struct {
	Port int        // the zero value is the first active one
	GID  GIDOptions // which GIDs BestGID may take
	PSN  uint32     // the zero value is a random one
	QKey uint32     // of a datagram queue pair; the zero value is DefaultQKey
}

// DefaultQKey is the key of datagram queue pairs whose options have none.
const DefaultQKey = 0x11111111

// maxReadDepth is as much as an endpoint takes without being told to.
const maxReadDepth = 16

// Addr describes the queue pair to a peer, for ConnectTo on both sides, or
// for Activate. It asks the device for its port and GIDs; see
// ibv_query_port(3) and ibv_query_gid_ex(3). A port that is down is refused
// with syscall.ENETDOWN, and a GID that there is not with ErrNoGID.
func (qp *QP) Addr(options QPAddrOptions) (QPAddr, error) {
	if err := qp.self().Use(); err != nil {
		return QPAddr{}, err
	}
	defer qp.object.Done()
	c := qp.device
	device, err := c.QueryDevice()
	if err != nil {
		return QPAddr{}, err
	}
	number, port, err := activePort(c, device.Ports, options.Port)
	if err != nil {
		return QPAddr{}, err
	}
	gid, err := c.BestGID(number, options.GID)
	if err != nil {
		return QPAddr{}, err
	}
	e := QPAddr{
		QPNum: qp.Num(), PSN: options.PSN, LID: port.LID, GID: gid.GID, MTU: port.ActiveMTU,
		Port: number, GIDIndex: gid.Index,
	}
	if e.PSN == 0 {
		e.PSN = rand.Uint32N(1 << 24)
	}
	switch qp.Type() {
	case QPTypeRC:
		e.ReadDepth = min(device.MaxQPReadAtomic, maxReadDepth)
	case QPTypeUD:
		e.QKey = options.QKey
		if e.QKey == 0 {
			e.QKey = DefaultQKey
		}
	}
	if err := e.check(); err != nil {
		return QPAddr{}, cerr.Argument("QP.Addr", qp.object.Name(), err)
	}
	return e, nil
}

// activePort returns a port that is active: the one wanted, or the first of
// the device if that is 0.
func activePort(c *Device, ports, wanted int) (int, PortAttr, error) {
	first, last := wanted, wanted
	if wanted == 0 {
		first, last = 1, ports
	}
	for number := first; number <= last; number++ {
		port, err := c.QueryPort(number)
		if err != nil {
			return 0, PortAttr{}, err
		}
		if port.State == PortActive {
			return number, port, nil
		}
		if wanted != 0 {
			return 0, PortAttr{}, fmt.Errorf("%s is %s: %w", portName(c, number), port.State, syscall.ENETDOWN)
		}
	}
	return 0, PortAttr{}, fmt.Errorf("%s has no active port: %w", c.Name(), syscall.ENETDOWN)
}

// check refuses what cannot be an endpoint.
func (e QPAddr) check() error {
	switch {
	case e.QPNum == 0 || e.QPNum >= 1<<24:
		return badEndpoint("queue pair number %#x", e.QPNum)
	case e.PSN >= 1<<24:
		return badEndpoint("packet sequence number %#x", e.PSN)
	case e.LID == 0 && e.GID.IsZero():
		return badEndpoint("neither a LID nor a GID")
	case e.MTU.Bytes() == 0:
		return badEndpoint("MTU %d", uint32(e.MTU))
	case e.ReadDepth < 0 || e.ReadDepth > 255:
		return badEndpoint("read depth %d", e.ReadDepth)
	case e.Port < 1 || e.Port > 255:
		return badEndpoint("port %d", e.Port)
	case e.GIDIndex < 0 || e.GIDIndex > 255:
		return badEndpoint("GID index %d", e.GIDIndex)
	}
	return nil
}

func badEndpoint(format string, args ...any) error {
	return cerr.Invalid("endpoint with "+format, args...)
}

// needsGRH says whether packets from e to the peer need a global address.
func (e QPAddr) needsGRH(peer QPAddr, port PortAttr) bool {
	var own, its [8]byte // subnet prefixes
	copy(own[:], e.GID[:8])
	copy(its[:], peer.GID[:8])
	return port.LinkLayer == LinkEthernet || port.GRHRequired || peer.LID == 0 ||
		!peer.GID.IsZero() && own != its
}

// address returns the way from e to the peer.
func (e QPAddr) address(peer QPAddr, port PortAttr, options ConnectOptions) libibverbs.AhAttr {
	a := libibverbs.AhAttr{Dlid: peer.LID, PortNum: uint8(e.Port), Sl: options.SL}
	if e.needsGRH(peer, port) {
		a.IsGlobal = 1
		a.Grh = libibverbs.GlobalRoute{
			SgidIndex: uint8(e.GIDIndex), FlowLabel: options.FlowLabel,
			TrafficClass: options.TrafficClass, HopLimit: options.HopLimit,
		}
		*a.Grh.Dgid.Raw() = peer.GID
	}
	return a
}

// String returns the endpoint as a line of text without its end. It has these
// fields in this order, with one space between them:
//
//	qpn=0x000011 psn=0x0a1b2c qkey=0x00000000 lid=0 gid=0000:0000:0000:0000:0000:ffff:c000:0201 mtu=1024 reads=16 port=1 gidindex=1
//
// Numbers may be in decimal or, after 0x, hexadecimal. The MTU is in bytes.
func (e QPAddr) String() string {
	return fmt.Sprintf("qpn=0x%06x psn=0x%06x qkey=0x%08x lid=%d gid=%s mtu=%s reads=%d port=%d gidindex=%d",
		e.QPNum, e.PSN, e.QKey, e.LID, e.GID, e.MTU, e.ReadDepth, e.Port, e.GIDIndex)
}

// ParseQPAddr reads what String gives, and refuses what cannot be an
// endpoint.
func ParseQPAddr(s string) (QPAddr, error) {
	var e QPAddr
	fields := []struct {
		name string
		to   any
	}{
		{"qpn", &e.QPNum},
		{"psn", &e.PSN},
		{"qkey", &e.QKey},
		{"lid", &e.LID},
		{"gid", &e.GID},
		{"mtu", &e.MTU},
		{"reads", &e.ReadDepth},
		{"port", &e.Port},
		{"gidindex", &e.GIDIndex},
	}
	words := strings.Fields(s)
	if len(words) != len(fields) {
		return QPAddr{}, fmt.Errorf("%q is no endpoint: it has %d fields, not %d", shorten(s), len(words), len(fields))
	}
	for i, f := range fields {
		value, ok := strings.CutPrefix(words[i], f.name+"=")
		if !ok {
			return QPAddr{}, fmt.Errorf("%q is no endpoint: field %d is not %s=", shorten(s), i+1, f.name)
		}
		if err := parseField(value, f.to); err != nil {
			return QPAddr{}, fmt.Errorf("%q is no endpoint: %s: %w", shorten(s), f.name, err)
		}
	}
	if err := e.check(); err != nil {
		return QPAddr{}, cerr.Argument("ParseQPAddr", "", err)
	}
	return e, nil
}

func parseField(value string, to any) error {
	if u, ok := to.(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(value))
	}
	size := 32
	if _, ok := to.(*uint16); ok {
		size = 16
	}
	n, err := strconv.ParseUint(value, 0, size)
	if err != nil {
		return err
	}
	switch to := to.(type) {
	case *uint16:
		*to = uint16(n)
	case *uint32:
		*to = uint32(n)
	case *int:
		*to = int(n)
	}
	return nil
}

// shorten keeps what a peer sent from filling a log.
func shorten(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// MarshalText is String.
func (e QPAddr) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText is ParseQPAddr.
func (e *QPAddr) UnmarshalText(text []byte) error {
	parsed, err := ParseQPAddr(string(text))
	if err == nil {
		*e = parsed
	}
	return err
}

// endpointFields is a QPAddr without methods, which JSON would use.
type endpointFields QPAddr

// MarshalJSON gives an object with the fields of the struct.
func (e QPAddr) MarshalJSON() ([]byte, error) { return json.Marshal(endpointFields(e)) }

// UnmarshalJSON reads what MarshalJSON gives, and refuses what cannot be an
// endpoint.
func (e *QPAddr) UnmarshalJSON(text []byte) error {
	var parsed endpointFields
	if err := json.Unmarshal(text, &parsed); err != nil {
		return err
	}
	if err := QPAddr(parsed).check(); err != nil {
		return cerr.Argument("QPAddr.UnmarshalJSON", "", err)
	}
	*e = QPAddr(parsed)
	return nil
}

// connectValues are ConnectOptions without zero values that mean another one,
// and in C's encodings.
type connectValues struct {
	ConnectOptions
	timeout, retryCount, rnrRetryCount, rnrTimer, readDepth uint8
}

const (
	defaultHopLimit      = 64
	defaultTimeout       = 67 * time.Millisecond // 4.096 us * 2^14
	defaultRNRTimer      = 640 * time.Microsecond
	defaultRetryCount    = 6 // with 7 Soft-RoCE would never notice that a peer has vanished
	defaultRNRRetryCount = RNRRetryForever
	maxRetryCount        = 7
)

// countOr returns what a count stands for whose zero value is the default, and whose
// negative values are none.
func countOr(count, zero int) int { return max(cmp.Or(count, zero), 0) }

// complete checks the options, for a queue pair that can have readDepth RDMA
// reads and atomics under way.
func (o ConnectOptions) complete(t QPType, readDepth int) (connectValues, error) {
	v := connectValues{ConnectOptions: o}
	fail := func(format string, args ...any) (connectValues, error) {
		return connectValues{}, cerr.Invalid(format, args...)
	}
	switch {
	case t != QPTypeRC && t != QPTypeUC:
		return fail("the queue pair is of type %s, neither %s nor %s", t, QPTypeRC, QPTypeUC)
	case o.MaxMTU != 0 && o.MaxMTU.Bytes() == 0:
		return fail("MTU %d", uint32(o.MaxMTU))
	case o.SL > 15:
		return fail("service level %d", o.SL)
	case o.FlowLabel >= 1<<20:
		return fail("flow label %#x", o.FlowLabel)
	case o.RetryCount > maxRetryCount:
		return fail("retry count %d", o.RetryCount)
	case o.RNRRetryCount > maxRetryCount:
		return fail("RNR retry count %d", o.RNRRetryCount)
	case o.ReadDepth > readDepth:
		return fail("read depth %d of at most %d", o.ReadDepth, readDepth)
	case o.Timeout < 0 || o.MinRNRTimer < 0:
		return fail("negative timeout")
	}
	if v.Access == 0 {
		v.Access = AccessRemoteWrite
		if t == QPTypeRC {
			v.Access |= AccessRemoteRead | AccessRemoteAtomic
		}
	}
	if v.MaxMTU == 0 {
		v.MaxMTU = MTU(libibverbs.IBV_MTU_4096)
	}
	v.HopLimit = cmp.Or(o.HopLimit, defaultHopLimit)
	v.retryCount = uint8(countOr(o.RetryCount, defaultRetryCount))
	v.rnrRetryCount = uint8(countOr(o.RNRRetryCount, defaultRNRRetryCount))
	v.readDepth = uint8(countOr(o.ReadDepth, min(readDepth, maxReadDepth)))
	var err error
	if v.timeout, err = timeoutCode(cmp.Or(o.Timeout, defaultTimeout)); err != nil {
		return connectValues{}, err
	}
	if v.rnrTimer, err = rnrTimerCode(cmp.Or(o.MinRNRTimer, defaultRNRTimer)); err != nil {
		return connectValues{}, err
	}
	return v, nil
}

// ConnectOptions say how a queue pair behaves once it is connected. The zero
// value is good for most programs.
type ConnectOptions struct {
	// Access is what peers may do through the queue pair, in regions that
	// allow it too. The zero value is all of remote write, read and atomic
	// that the type of queue pair has; AccessLocalWrite alone is nothing.
	Access AccessFlags

	PKeyIndex int
	MaxMTU    MTU // the zero value is no limit; the smaller one of both ports counts anyway

	// For InfiniBand the way through the subnet, for RoCE the IP header.
	SL           uint8
	TrafficClass uint8
	FlowLabel    uint32
	HopLimit     uint8 // the zero value is 64

	// Of reliable connections only.
	Timeout       time.Duration // for an acknowledgement, rounded up to 4.096 us * 2^n; the zero value is 67 ms
	RetryCount    int           // after timeouts, up to 7, which Soft-RoCE takes for endless; the zero value is 6, negative is none
	RNRRetryCount int           // while the peer has no receive, up to 7; the zero value is RNRRetryForever, negative is none
	MinRNRTimer   time.Duration // that a sender is told to wait then, rounded up; the zero value is 0.64 ms
	ReadDepth     int           // RDMA reads and atomics under way; the zero value is as many as both sides can, negative is none
}

// ConnectTo connects a queue pair of type RC or UC without package rdmacm: it
// moves it from reset through init and ready to receive to ready to send. Both
// sides call it, with what Endpoint gave on this side and on the other.
// Receives may be posted before or after, but must be there before the peer
// sends. See ibv_modify_qp(3). On RoCE it may hold a thread for seconds, as
// Modify says. If it fails, the queue pair may be left in a state in between.
func (qp *QP) ConnectTo(local, remote QPAddr, options ConnectOptions) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	s, err := qp.steps(local, remote, options)
	if err != nil {
		return err
	}
	return explainGIDs(qp.modifyAll(s), local, remote)
}

// Activate makes a queue pair of type UD ready to send and receive, with what
// Endpoint gave for it; see ibv_modify_qp(3). pkeyIndex is that of its
// partition in the port's table. Peers need the same endpoint's address, number
// and key. If it fails, the queue pair may be left in a state in between.
func (qp *QP) Activate(local QPAddr, pkeyIndex int) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	if err := qp.checkLocal(local, pkeyIndex); err != nil {
		return qp.refuse(opActivate, err)
	}
	if qp.Type() != QPTypeUD {
		return qp.refuse(opActivate, cerr.Invalid("the queue pair is of type %s, not %s", qp.Type(), QPTypeUD))
	}
	return qp.modifyAll([]step{
		{
			libibverbs.QpAttr{
				QpState: QPStateInit, PkeyIndex: uint16(pkeyIndex), PortNum: uint8(local.Port), Qkey: local.QKey,
			},
			libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_QKEY,
		},
		{libibverbs.QpAttr{QpState: QPStateRTR}, libibverbs.IBV_QP_STATE},
		{
			libibverbs.QpAttr{QpState: QPStateRTS, SqPsn: local.PSN},
			libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_SQ_PSN,
		},
	})
}

// explainGIDs says why C refuses the way between two endpoints, with a bare
// EINVAL, if their GIDs are of different kinds.
func explainGIDs(err error, local, peer QPAddr) error {
	here, there := local.GID.Addr(), peer.GID.Addr()
	if e, ok := err.(*Error); ok && e.Errno == syscall.EINVAL && here.Is4() != there.Is4() {
		return fmt.Errorf("%w: the GID is of %s here and of %s there, and both must be of IPv4 or both of IPv6; see QPAddrOptions.GID", err, here, there)
	}
	return err
}

// step is a change of a queue pair.
const (
	opConnect  = "QP.ConnectTo"
	opActivate = "QP.Activate"
)

func (qp *QP) refuse(op string, err error) error { return cerr.Argument(op, qp.object.Name(), err) }

type step struct {
	attr libibverbs.QpAttr
	mask libibverbs.QpAttrMask
}

func (qp *QP) modifyAll(steps []step) error {
	for _, s := range steps {
		if err := qp.modify(&s.attr, s.mask); err != nil {
			return err
		}
	}
	return nil
}

func (qp *QP) checkLocal(local QPAddr, pkeyIndex int) error {
	if err := local.check(); err != nil {
		return fmt.Errorf("local %w", err)
	}
	if local.QPNum != qp.Num() {
		return cerr.Invalid("local endpoint is that of QP %d", local.QPNum)
	}
	if pkeyIndex < 0 || pkeyIndex > 1<<16-1 {
		return inRange("P_Key index", pkeyIndex, 0, 1<<16-1)
	}
	return nil
}

// steps returns the changes that connect the queue pair.
func (qp *QP) steps(local, remote QPAddr, options ConnectOptions) ([]step, error) {
	if err := qp.checkLocal(local, options.PKeyIndex); err != nil {
		return nil, qp.refuse(opConnect, err)
	}
	if err := remote.check(); err != nil {
		return nil, qp.refuse(opConnect, fmt.Errorf("remote %w", err))
	}
	port, err := qp.device.QueryPort(local.Port)
	if err != nil {
		return nil, err
	}
	device, err := qp.device.QueryDevice()
	if err != nil {
		return nil, err
	}
	o, err := options.complete(qp.Type(), min(device.MaxQPInitReadAtomic, remote.ReadDepth))
	if err != nil {
		return nil, qp.refuse(opConnect, err)
	}
	return connectSteps(qp.Type(), local, remote, port, o), nil
}

// connectSteps returns the changes for options that are complete.
func connectSteps(t QPType, local, remote QPAddr, port PortAttr, o connectValues) []step {
	init := step{
		libibverbs.QpAttr{
			QpState: QPStateInit, PkeyIndex: uint16(o.PKeyIndex), PortNum: uint8(local.Port), QpAccessFlags: uint32(o.Access),
		},
		libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_ACCESS_FLAGS,
	}
	rtr := step{
		libibverbs.QpAttr{
			QpState: QPStateRTR, AhAttr: local.address(remote, port, o.ConnectOptions), DestQpNum: remote.QPNum, RqPsn: remote.PSN,
			PathMtu: libibverbs.Mtu(min(local.MTU, remote.MTU, o.MaxMTU)),
		},
		libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_AV | libibverbs.IBV_QP_PATH_MTU |
			libibverbs.IBV_QP_DEST_QPN | libibverbs.IBV_QP_RQ_PSN,
	}
	rts := step{
		libibverbs.QpAttr{QpState: QPStateRTS, SqPsn: local.PSN},
		libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_SQ_PSN,
	}
	if t == QPTypeRC {
		rtr.attr.MaxDestRdAtomic, rtr.attr.MinRnrTimer = uint8(local.ReadDepth), o.rnrTimer
		rtr.mask |= libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC | libibverbs.IBV_QP_MIN_RNR_TIMER
		rts.attr.Timeout, rts.attr.RetryCnt, rts.attr.RnrRetry = o.timeout, o.retryCount, o.rnrRetryCount
		rts.attr.MaxRdAtomic = o.readDepth
		rts.mask |= libibverbs.IBV_QP_TIMEOUT | libibverbs.IBV_QP_RETRY_CNT | libibverbs.IBV_QP_RNR_RETRY |
			libibverbs.IBV_QP_MAX_QP_RD_ATOMIC
	}
	return []step{init, rtr, rts}
}

// CreateDestination makes the address handle for datagrams from a queue pair of
// type UD to a peer's, with what Endpoint gave for both, and returns it with the
// peer's number and key. The caller closes its AH when the datagrams have
// completed. CreateAH can say more of the way. It waits as CreateAH does; see
// ibv_create_ah(3).
func (pd *PD) CreateDestination(local, peer QPAddr) (Destination, error) {
	if err := pd.self().Use(); err != nil {
		return Destination{}, err
	}
	defer pd.object.Done()
	fail := func(err error) (Destination, error) {
		return Destination{}, cerr.Argument("PD.CreateDestination", pd.object.Name(), err)
	}
	if err := local.check(); err != nil {
		return fail(fmt.Errorf("local %w", err))
	}
	if err := peer.check(); err != nil {
		return fail(fmt.Errorf("peer's %w", err))
	}
	if peer.QKey == 0 {
		return fail(cerr.Invalid("peer's endpoint is not of type %s: it has no QKey", QPTypeUD))
	}
	port, err := pd.device.QueryPort(local.Port)
	if err != nil {
		return Destination{}, err
	}
	way := local.address(peer, port, ConnectOptions{HopLimit: defaultHopLimit})
	ah, err := pd.CreateAH(ahAttrOf(&way))
	if err != nil {
		return Destination{}, explainGIDs(err, local, peer)
	}
	return Destination{AH: ah, QPNum: peer.QPNum, QKey: peer.QKey}, nil
}
