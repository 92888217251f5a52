// SPDX-License-Identifier: Apache-2.0

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
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/cerr"
)

// QPAddr is the address of a queue pair, which a peer needs to connect to the
// queue pair. Send it as a line of text or as JSON, for example over a socket.
type QPAddr struct {
	QPNum     uint32 // number of the queue pair, 24 bits
	PSN       uint32 // sequence number of the first packet that the queue pair sends, 24 bits
	QKey      uint32 // key that datagrams to the queue pair must carry; 0 for connected queue pairs
	LID       uint16 // LID of the port; 0 on RoCE
	GID       GID    // GID of the port
	MTU       MTU    // active MTU of the port
	ReadDepth int    // number of RDMA reads and atomics that the queue pair answers at a time
	Port      int    // port of the queue pair's device
	GIDIndex  int    // index of GID in the GID table of the port
}

// QPAddrConfig says which address QP.Addr chooses.
type QPAddrConfig struct {
	Port int       // port to use; 0 means the first active port that has such a GID
	GID  GIDConfig // GIDs that BestGID may choose from
	PSN  uint32    // sequence number of the first packet; 0 means a random number
	QKey uint32    // key for datagrams, only for datagram queue pairs; 0 means DefaultQKey
}

// DefaultQKey is the Q_Key of a datagram queue pair if QPAddrConfig.QKey is 0.
const DefaultQKey = 0x11111111

// maxReadDepth is the default limit of RDMA reads and atomics.
const maxReadDepth = 16

// Addr returns the queue pair's address, for ConnectTo on both sides or for
// Activate. It asks the device for its ports and GIDs; see ibv_query_port(3)
// and ibv_query_gid_ex(3). It fails with an error matching syscall.ENETDOWN if
// the port is down, and with one matching ErrNoGID if there is no such GID.
func (qp *QP) Addr(options QPAddrConfig) (QPAddr, error) {
	if err := qp.self().Use(); err != nil {
		return QPAddr{}, err
	}
	defer qp.object.Done()
	c := qp.device
	device, err := c.QueryDevice()
	if err != nil {
		return QPAddr{}, err
	}
	gid, port, err := activeGID(c, device.Ports, options)
	if err != nil {
		return QPAddr{}, err
	}
	e := QPAddr{
		QPNum: qp.Num(), PSN: options.PSN, LID: port.LID, GID: gid.GID, MTU: port.ActiveMTU,
		Port: gid.Port, GIDIndex: gid.Index,
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

// activeGID returns the best GID of the port options.Port, which must be
// active. If options.Port is 0, it takes the first active port of the device
// that has such a GID.
func activeGID(c *Device, ports int, options QPAddrConfig) (GIDEntry, PortAttr, error) {
	first, last := options.Port, options.Port
	if options.Port == 0 {
		first, last = 1, ports
	}
	var failed error
	for number := first; number <= last; number++ {
		port, err := c.QueryPort(number)
		if err != nil {
			return GIDEntry{}, PortAttr{}, err
		}
		if port.State != link.Active {
			if options.Port != 0 {
				failed = fmt.Errorf("%s is %s: %w", portName(c, number), port.State, syscall.ENETDOWN)
			}
			continue
		}
		gid, err := c.BestGID(number, options.GID)
		if err == nil {
			return gid, port, nil
		}
		failed = cmp.Or(failed, err)
	}
	if failed == nil {
		failed = fmt.Errorf("%s has no active port: %w", c.Name(), syscall.ENETDOWN)
	}
	return GIDEntry{}, PortAttr{}, failed
}

// check returns an error if e cannot be an address.
func (e QPAddr) check() error {
	switch {
	case e.QPNum == 0 || e.QPNum >= 1<<24:
		return badAddr("queue pair number is %#x, not from 0x1 to %#x", e.QPNum, maxQPN)
	case e.PSN >= 1<<24:
		return badAddr("packet sequence number is %#x, more than %#x", e.PSN, maxPSN)
	case e.LID == 0 && e.GID.IsZero():
		return badAddr("both LID and GID are zero")
	case e.MTU.Bytes() == 0:
		return badAddr("MTU is %d, not from MTU256 (%d) to MTU4096 (%d)", uint32(e.MTU), uint32(MTU256), uint32(MTU4096))
	case e.ReadDepth < 0 || e.ReadDepth > 255:
		return badAddr("read depth is %d, not from 0 to 255", e.ReadDepth)
	case e.Port < 1 || e.Port > 255:
		return badAddr("port is %d, not from 1 to 255", e.Port)
	case e.GIDIndex < 0 || e.GIDIndex > 255:
		return badAddr("GID index is %d, not from 0 to 255", e.GIDIndex)
	}
	return nil
}

func badAddr(format string, args ...any) error {
	return cerr.Invalid("address: "+format, args...)
}

// needsGRH reports whether packets from e to the peer need a global route
// header. port is the port of e.
func (e QPAddr) needsGRH(peer QPAddr, port PortAttr) bool {
	var own, its [8]byte // subnet prefixes
	copy(own[:], e.GID[:8])
	copy(its[:], peer.GID[:8])
	return port.LinkLayer == link.Ethernet || port.GRHRequired || peer.LID == 0 ||
		!peer.GID.IsZero() && own != its
}

// address returns the path from e to the peer in C's form. port is the port of
// e.
func (e QPAddr) address(peer QPAddr, port PortAttr, options ConnectConfig) libibverbs.AhAttr {
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

// String returns the address as one line of text without a newline. It has
// these fields in this order, separated by one space:
//
//	qpn=0x000011 psn=0x0a1b2c qkey=0x00000000 lid=0 gid=0000:0000:0000:0000:0000:ffff:c000:0201 mtu=1024 reads=16 port=1 gidindex=1
//
// Numbers may be decimal or, after 0x, hexadecimal. The MTU is in bytes.
func (e QPAddr) String() string {
	return fmt.Sprintf("qpn=0x%06x psn=0x%06x qkey=0x%08x lid=%d gid=%s mtu=%s reads=%d port=%d gidindex=%d",
		e.QPNum, e.PSN, e.QKey, e.LID, e.GID, e.MTU, e.ReadDepth, e.Port, e.GIDIndex)
}

// ParseQPAddr parses the text that String returns. It refuses invalid
// addresses.
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
		return QPAddr{}, fmt.Errorf("%q is not a QP address: it has %d fields, not %d", shorten(s), len(words), len(fields))
	}
	for i, f := range fields {
		value, ok := strings.CutPrefix(words[i], f.name+"=")
		if !ok {
			return QPAddr{}, fmt.Errorf("%q is not a QP address: field %d is not %s=", shorten(s), i+1, f.name)
		}
		if err := parseField(value, f.to); err != nil {
			return QPAddr{}, fmt.Errorf("%q is not a QP address: %s: %w", shorten(s), f.name, err)
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

// shorten limits how much of a peer's text gets into an error and a log.
func shorten(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// MarshalText returns what String returns.
func (e QPAddr) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText parses the text like ParseQPAddr.
func (e *QPAddr) UnmarshalText(text []byte) error {
	parsed, err := ParseQPAddr(string(text))
	if err == nil {
		*e = parsed
	}
	return err
}

// addrFields is QPAddr without its methods, which package json would use.
type addrFields QPAddr

// MarshalJSON returns a JSON object with the fields of the struct.
func (e QPAddr) MarshalJSON() ([]byte, error) { return json.Marshal(addrFields(e)) }

// UnmarshalJSON parses what MarshalJSON returns. It refuses invalid addresses.
func (e *QPAddr) UnmarshalJSON(text []byte) error {
	var parsed addrFields
	if err := json.Unmarshal(text, &parsed); err != nil {
		return err
	}
	if err := QPAddr(parsed).check(); err != nil {
		return cerr.Argument("QPAddr.UnmarshalJSON", "", err)
	}
	*e = QPAddr(parsed)
	return nil
}

// connectValues holds a ConnectConfig with its defaults filled in, and the
// values in C's encodings.
type connectValues struct {
	ConnectConfig
	timeout, retryCount, rnrRetryCount, rnrTimer, readDepth uint8
}

const (
	defaultHopLimit      = 64
	defaultTimeout       = 67 * time.Millisecond // 4.096 us * 2^14
	defaultRNRTimer      = 640 * time.Microsecond
	defaultRetryCount    = 6 // not 7, with which Soft-RoCE would never notice that a peer has vanished
	defaultRNRRetryCount = RNRRetryForever
	maxRetryCount        = 7
)

// countOr returns def if count is 0, 0 if count is negative, and count
// otherwise.
func countOr(count, def int) int { return max(cmp.Or(count, def), 0) }

// complete checks the config and fills in the defaults, for a queue pair of
// type t that can have readDepth RDMA reads and atomics in progress.
func (o ConnectConfig) complete(t QPType, readDepth int) (connectValues, error) {
	v := connectValues{ConnectConfig: o}
	fail := func(format string, args ...any) (connectValues, error) {
		return connectValues{}, cerr.Invalid(format, args...)
	}
	switch {
	case t != QPTypeRC && t != QPTypeUC:
		return fail("the queue pair is of type %s, neither %s nor %s", t, QPTypeRC, QPTypeUC)
	case o.MaxMTU != 0 && o.MaxMTU.Bytes() == 0:
		return fail("MaxMTU is %d, not from MTU256 (%d) to MTU4096 (%d)", uint32(o.MaxMTU), uint32(MTU256), uint32(MTU4096))
	case o.SL > 15:
		return fail("SL is %d, more than 15", o.SL)
	case o.FlowLabel >= 1<<20:
		return fail("FlowLabel is %#x, more than %#x", o.FlowLabel, maxFlowLabel)
	case o.RetryCount > maxRetryCount:
		return fail("RetryCount is %d, more than %d", o.RetryCount, maxRetryCount)
	case o.RNRRetryCount > maxRetryCount:
		return fail("RNRRetryCount is %d, more than %d", o.RNRRetryCount, maxRetryCount)
	case o.ReadDepth > readDepth:
		return fail("ReadDepth is %d, more than %d, which is the most that both ends support", o.ReadDepth, readDepth)
	case o.Timeout < 0 || o.MinRNRTimer < 0:
		return fail("Timeout is %v and MinRNRTimer is %v; neither may be negative", o.Timeout, o.MinRNRTimer)
	}
	if v.Access == 0 {
		v.Access = AccessRemoteWrite
		if t == QPTypeRC {
			v.Access |= AccessRemoteRead | AccessRemoteAtomic
		}
	}
	if v.MaxMTU == 0 {
		v.MaxMTU = MTU4096
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

// ConnectConfig says how a connected queue pair behaves. The zero value suits
// most programs.
type ConnectConfig struct {
	// Access says what peers may do through the queue pair, in regions that
	// also allow it. The zero value allows the remote writes, reads and atomics
	// that the type supports. AccessLocalWrite alone allows nothing.
	Access AccessFlags

	PKeyIndex int
	MaxMTU    MTU // limit in addition to both ports' MTUs; 0 means none

	// Fields of the path on InfiniBand, and of the IP header on RoCE.
	SL           uint8
	TrafficClass uint8
	FlowLabel    uint32
	HopLimit     uint8 // 0 means 64

	// Only for reliable connections.
	Timeout       time.Duration // how long to wait for an acknowledgement; rounded up to 4.096 us * 2^n; 0 means 67 ms
	RetryCount    int           // retries after a timeout, at most 7 (forever on Soft-RoCE); 0 means 6; negative means none
	RNRRetryCount int           // retries while the peer has no receive posted, at most 7; 0 means RNRRetryForever; negative means none
	MinRNRTimer   time.Duration // how long the peer waits if no receive is posted; rounded up; 0 means 0.64 ms
	ReadDepth     int           // maximum number of RDMA reads and atomics in progress; 0 means as many as both sides support, at most 16; negative means none
}

// ConnectTo connects a queue pair of type QPTypeRC or QPTypeUC without package
// rdmacm. It moves the queue pair from reset to init, ready to receive, and
// ready to send; see ibv_modify_qp(3). Both sides must call it with what
// QP.Addr returned on this side and on the other. Receives may be posted before
// or after, but must be posted before the peer sends. On RoCE, ConnectTo may
// block an OS thread for seconds, while the kernel resolves the peer's hardware
// address. If ConnectTo fails, the queue pair may be in an intermediate state.
func (qp *QP) ConnectTo(local, remote QPAddr, options ConnectConfig) error {
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

// Activate makes a queue pair of type QPTypeUD ready to send and receive; see
// ibv_modify_qp(3). local is what QP.Addr returned for the queue pair, and
// pkeyIndex is the index of its partition in the port's P_Key table. Peers need
// local to send to the queue pair. If Activate fails, the queue pair may be in
// an intermediate state.
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

// explainGIDs adds to err that the two GIDs are of different kinds, if that is
// why C refuses the path. C returns only EINVAL.
func explainGIDs(err error, local, peer QPAddr) error {
	here, there := local.GID.Addr(), peer.GID.Addr()
	if e, ok := err.(*Error); ok && e.Errno == syscall.EINVAL && here.Is4() != there.Is4() {
		return fmt.Errorf("%w: the local GID is of %s and the peer's is of %s, but both must be of IPv4 or both of IPv6; see QPAddrConfig.GID", err, here, there)
	}
	return err
}

const (
	opConnect  = "QP.ConnectTo"
	opActivate = "QP.Activate"
)

func (qp *QP) refuse(op string, err error) error { return cerr.Argument(op, qp.object.Name(), err) }

// step is a change of a queue pair's attributes. mask selects the fields of
// attr to change.
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
		return cerr.Invalid("the local address is that of QP %d", local.QPNum)
	}
	if pkeyIndex < 0 || pkeyIndex > 1<<16-1 {
		return inRange("P_Key index", pkeyIndex, 0, 1<<16-1)
	}
	return nil
}

// steps returns the changes that connect the queue pair.
func (qp *QP) steps(local, remote QPAddr, options ConnectConfig) ([]step, error) {
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

// connectSteps returns the changes that connect a queue pair of type t. o is
// the complete config.
func connectSteps(t QPType, local, remote QPAddr, port PortAttr, o connectValues) []step {
	init := step{
		libibverbs.QpAttr{
			QpState: QPStateInit, PkeyIndex: uint16(o.PKeyIndex), PortNum: uint8(local.Port), QpAccessFlags: o.Access,
		},
		libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_ACCESS_FLAGS,
	}
	rtr := step{
		libibverbs.QpAttr{
			QpState: QPStateRTR, AhAttr: local.address(remote, port, o.ConnectConfig), DestQpNum: remote.QPNum, RqPsn: remote.PSN,
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

// CreateDestination creates an address handle for datagrams between two queue
// pairs of type QPTypeUD and returns it with the peer's number and Q_Key; see
// ibv_create_ah(3). local and peer are what QP.Addr returned on the two sides.
// The caller must close the AH after the datagrams have completed.
// CreateDestination blocks like CreateAH, which can also set the details of the
// path.
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
		return fail(cerr.Invalid("the peer's address has no QKey, so its queue pair is not of type %s", QPTypeUD))
	}
	port, err := pd.device.QueryPort(local.Port)
	if err != nil {
		return Destination{}, err
	}
	way := local.address(peer, port, ConnectConfig{HopLimit: defaultHopLimit})
	ah, err := pd.CreateAH(AHAttrFromRaw(&way))
	if err != nil {
		return Destination{}, explainGIDs(err, local, peer)
	}
	return Destination{AH: ah, QPNum: peer.QPNum, QKey: peer.QKey}, nil
}
