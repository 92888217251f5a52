package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// transition is a change from one state to another, or of attributes within
// one.
type transition struct{ from, to QPState }

// attrs are the attributes of a transition besides the state.
type attrs struct{ required, optional QPAttrMask }

// Sets of attributes that many transitions share.
const (
	connInit = QPAttrPKeyIndex | QPAttrPort | QPAttrAccess
	udInit   = QPAttrPKeyIndex | QPAttrPort | QPAttrQKey
	connPath = QPAttrPath | QPAttrPathMTU | QPAttrDestQPNum | QPAttrRecvPSN
	answers  = QPAttrMaxDestReadAtomic | QPAttrMinRNRTimer // what a responder needs to know
	retries  = QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetryCount | QPAttrMaxReadAtomic

	rtrConn = QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex
	rtsUD   = QPAttrCurState | QPAttrQKey
	rtsConn = QPAttrCurState | QPAttrAltPath | QPAttrAccess | QPAttrMigration
	rtsRecv = rtsConn | QPAttrMinRNRTimer
	sqdConn = QPAttrPath | QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex | QPAttrMigration
)

// rts is what may change on the way to RTS, and in it.
var rts = map[QPType]attrs{
	QPTypeRC:      {optional: rtsRecv},
	QPTypeUC:      {optional: rtsConn},
	QPTypeUD:      {optional: rtsUD},
	QPTypeXRCSend: {optional: rtsConn},
	QPTypeXRCRecv: {optional: rtsRecv},
}

// transitions are the ones that the InfiniBand specification has, with the
// attributes that the manual page ibv_modify_qp(3) requires and the kernel
// checks. From every state there is a way to reset and to the error state,
// without other attributes, so they are not listed. A type that is not listed
// has no attributes but the state.
var transitions = map[transition]map[QPType]attrs{
	{QPStateReset, QPStateInit}: {
		QPTypeRC:        {required: connInit},
		QPTypeUC:        {required: connInit},
		QPTypeUD:        {required: udInit},
		QPTypeRawPacket: {required: QPAttrPort},
		QPTypeXRCSend:   {required: connInit},
		QPTypeXRCRecv:   {required: connInit},
	},
	{QPStateInit, QPStateInit}: {
		QPTypeRC:      {optional: connInit},
		QPTypeUC:      {optional: connInit},
		QPTypeUD:      {optional: udInit},
		QPTypeXRCSend: {optional: connInit},
		QPTypeXRCRecv: {optional: connInit},
	},
	{QPStateInit, QPStateRTR}: {
		QPTypeRC:      {required: connPath | answers, optional: rtrConn},
		QPTypeUC:      {required: connPath, optional: rtrConn},
		QPTypeUD:      {optional: QPAttrPKeyIndex | QPAttrQKey},
		QPTypeXRCSend: {required: connPath, optional: rtrConn},
		QPTypeXRCRecv: {required: connPath | answers, optional: rtrConn},
	},
	{QPStateRTR, QPStateRTS}: {
		QPTypeRC:      {required: QPAttrSendPSN | retries, optional: rtsRecv},
		QPTypeUC:      {required: QPAttrSendPSN, optional: rtsConn},
		QPTypeUD:      {required: QPAttrSendPSN, optional: rtsUD},
		QPTypeXRCSend: {required: QPAttrSendPSN | retries, optional: rtsConn},
		QPTypeXRCRecv: {required: QPAttrSendPSN | QPAttrTimeout, optional: rtsRecv},
	},
	{QPStateRTS, QPStateRTS}: rts,
	{QPStateSQD, QPStateRTS}: rts,
	{QPStateSQE, QPStateRTS}: {
		QPTypeUC: {optional: QPAttrCurState | QPAttrAccess},
		QPTypeUD: {optional: rtsUD},
	},
	{QPStateRTS, QPStateSQD}: {
		QPTypeRC:      {optional: QPAttrNotifyDrained},
		QPTypeUC:      {optional: QPAttrNotifyDrained},
		QPTypeUD:      {optional: QPAttrNotifyDrained},
		QPTypeXRCSend: {optional: QPAttrNotifyDrained},
		QPTypeXRCRecv: {optional: QPAttrNotifyDrained},
	},
	{QPStateSQD, QPStateSQD}: {
		QPTypeRC:      {optional: sqdConn | QPAttrPort | retries | answers},
		QPTypeUC:      {optional: sqdConn},
		QPTypeUD:      {optional: QPAttrPKeyIndex | QPAttrQKey},
		QPTypeXRCSend: {optional: sqdConn | QPAttrPort | retries},
		QPTypeXRCRecv: {optional: sqdConn | QPAttrPort | QPAttrTimeout | answers},
	},
}

// QPAttrMask says which attributes of a queue pair are meant; combine them
// with |.
type QPAttrMask = libibverbs.QpAttrMask

// The attributes of a queue pair, which are fields of QPAttr.
const (
	QPAttrState             QPAttrMask = libibverbs.IBV_QP_STATE
	QPAttrCurState          QPAttrMask = libibverbs.IBV_QP_CUR_STATE
	QPAttrNotifyDrained     QPAttrMask = libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY
	QPAttrAccess            QPAttrMask = libibverbs.IBV_QP_ACCESS_FLAGS
	QPAttrPKeyIndex         QPAttrMask = libibverbs.IBV_QP_PKEY_INDEX
	QPAttrPort              QPAttrMask = libibverbs.IBV_QP_PORT
	QPAttrQKey              QPAttrMask = libibverbs.IBV_QP_QKEY
	QPAttrPath              QPAttrMask = libibverbs.IBV_QP_AV
	QPAttrPathMTU           QPAttrMask = libibverbs.IBV_QP_PATH_MTU
	QPAttrTimeout           QPAttrMask = libibverbs.IBV_QP_TIMEOUT
	QPAttrRetryCount        QPAttrMask = libibverbs.IBV_QP_RETRY_CNT
	QPAttrRNRRetryCount     QPAttrMask = libibverbs.IBV_QP_RNR_RETRY
	QPAttrRecvPSN           QPAttrMask = libibverbs.IBV_QP_RQ_PSN
	QPAttrMaxReadAtomic     QPAttrMask = libibverbs.IBV_QP_MAX_QP_RD_ATOMIC
	QPAttrAltPath           QPAttrMask = libibverbs.IBV_QP_ALT_PATH // AltPath, AltPKeyIndex and AltTimeout
	QPAttrMinRNRTimer       QPAttrMask = libibverbs.IBV_QP_MIN_RNR_TIMER
	QPAttrSendPSN           QPAttrMask = libibverbs.IBV_QP_SQ_PSN
	QPAttrMaxDestReadAtomic QPAttrMask = libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC
	QPAttrMigration         QPAttrMask = libibverbs.IBV_QP_PATH_MIG_STATE
	QPAttrDestQPNum         QPAttrMask = libibverbs.IBV_QP_DEST_QPN
	QPAttrRateLimit         QPAttrMask = libibverbs.IBV_QP_RATE_LIMIT
)

// attrNames are the members of struct ibv_qp_attr for the bits of a mask.
var attrNames = [...]string{
	"qp_state", "cur_qp_state", "en_sqd_async_notify", "qp_access_flags", "pkey_index", "port_num", "qkey", "ah_attr",
	"path_mtu", "timeout", "retry_cnt", "rnr_retry", "rq_psn", "max_rd_atomic", "alt_ah_attr", "min_rnr_timer",
	"sq_psn", "max_dest_rd_atomic", "path_mig_state", "cap", "dest_qp_num",
	25: "rate_limit",
}
