# Completion of opsq for bash 3.2 and newer. Written by tools/papers.py; do not edit it here.
# It runs nothing when it is loaded; `opsq completion` gives submission ids, metadata keys, consumers and strategies.

_opsq_ask() { # KIND [SUFFIX]: offer what the daemon knows
    local program=${COMP_WORDS[0]/#\~/$HOME} word
    type "$program" >/dev/null 2>&1 || return 0
    while IFS=$'\t' read -r word _; do
        [[ $word == "$cur"* ]] && COMPREPLY+=("$(printf %q "$word")$2")
    done < <("$program" completion "$1" -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)
}

_opsq_tune() { # +o or -o OPTION…: change how the completion is inserted, where bash can (4.0 and newer)
    type compopt >/dev/null 2>&1 && compopt "$@"
    return 0
}

_opsq_program() { # INDEX: the word from which on another command line is typed
    if declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif (($1 == COMP_CWORD)); then
        COMPREPLY=($(compgen -c -- "$cur"))
    fi
}

_opsq() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local verb= kind= argument= many= words= options= valued= word i ended= position=0
    COMPREPLY=()
    # bash cuts words at "="; the value of an option is completed, that of KEY=VALUE is not
    if [[ $cur == = ]]; then
        cur=
        [[ $prev == -* ]] || return 0
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
        [[ $prev == -* ]] || return 0
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
            --state-dir | --socket | --token-file | --tls-ca-file | --tls-client-cert-file | --tls-client-key-file)
                ((i++))
                [[ ${COMP_WORDS[i]} == = ]] && ((i++))
                ;;
            -*) ;;
            *)
                verb=$word
                break
                ;;
        esac
    done
    case $verb in
        dead | history | schedule | notify | queue | outbox | token | spark)
            if ((i + 1 < COMP_CWORD)); then
                verb="$verb ${COMP_WORDS[i + 1]}"
                ((i++))
            fi
            ;;
    esac
    case $verb in
        '') argument=words words='start stop restart drain status top metrics gateway submit wait results show list cancel rm outbox relay dead run consume reserve read complete fail release extend spark history events notify explain pause resume limit limits weight audit schedule queue token config doctor check backup restore vacuum demo examples completion' ;;
        dead) argument=words words='list show requeue drop' options='--metadata -m --older-than --newer-than --reason --exit-status --signal --limit -n' valued='--metadata -m --older-than --newer-than --reason --exit-status --signal --limit -n' ;;
        history) argument=words words='list export prune' options='--event --consumer --metadata -m --reason --exit-status --signal --since --until --limit -n --oldest-first --after' valued='--event --consumer --metadata -m --reason --exit-status --signal --since --until --limit -n --after' ;;
        schedule) argument=words words='list add edit show pause resume trigger backfill rm' ;;
        notify) argument=words words='run dead retry drop' options='--once --since --jobs -j --time-limit --attempts --backoff' valued='--since --jobs -j --time-limit --attempts --backoff' ;;
        queue) argument=words words='list create show rm' ;;
        outbox) argument=words words=ddl options=--for valued=--for ;;
        token) argument=words words='list create revoke' ;;
        spark) argument=words words='doctor submit consume results run report' options='--master --conf --spark-logs' valued='--master --conf' ;;
        start) options='--foreground --socket-mode --shard --listen --listen-force --tls-cert-file --tls-key-file --tls-client-ca-file --client-token-file --tokens-file --store --replicate-to --replicate-every-s --replicate-lease-s --ack --durability --allow-network-fs --frame-limit-bytes --chunk-limit-bytes --connection-limit --log-level --log-bytes --log-count --trace-sql --drain-s --reservation-s --heartbeat-s --heartbeat-misses --max-attempts --max-lost --backoff-base-s --backoff-factor --backoff-max-s --max-backlog-chunks --min-free-bytes --history-days --history-rows --finished-days --event-days --event-rows --restart-lease-s' valued='--socket-mode --shard --listen --tls-cert-file --tls-key-file --tls-client-ca-file --client-token-file --tokens-file --store --replicate-to --replicate-every-s --replicate-lease-s --ack --durability --frame-limit-bytes --chunk-limit-bytes --connection-limit --log-level --log-bytes --log-count --drain-s --reservation-s --heartbeat-s --heartbeat-misses --max-attempts --max-lost --backoff-base-s --backoff-factor --backoff-max-s --max-backlog-chunks --min-free-bytes --history-days --history-rows --finished-days --event-days --event-rows --restart-lease-s' ;;
        stop) options=--drain valued=--drain ;;
        restart) options='--drain --socket-mode --shard --listen --listen-force --tls-cert-file --tls-key-file --tls-client-ca-file --client-token-file --tokens-file --store --replicate-to --replicate-every-s --replicate-lease-s --ack --durability --allow-network-fs --frame-limit-bytes --chunk-limit-bytes --connection-limit --log-level --log-bytes --log-count --trace-sql --drain-s --reservation-s --heartbeat-s --heartbeat-misses --max-attempts --max-lost --backoff-base-s --backoff-factor --backoff-max-s --max-backlog-chunks --min-free-bytes --history-days --history-rows --finished-days --event-days --event-rows --restart-lease-s' valued='--drain --socket-mode --shard --listen --tls-cert-file --tls-key-file --tls-client-ca-file --client-token-file --tokens-file --store --replicate-to --replicate-every-s --replicate-lease-s --ack --durability --frame-limit-bytes --chunk-limit-bytes --connection-limit --log-level --log-bytes --log-count --drain-s --reservation-s --heartbeat-s --heartbeat-misses --max-attempts --max-lost --backoff-base-s --backoff-factor --backoff-max-s --max-backlog-chunks --min-free-bytes --history-days --history-rows --finished-days --event-days --event-rows --restart-lease-s' ;;
        drain) options='--undo --to --all --to-token-file --patience --wait -w --timeout -t --give-up --force' valued='--to --to-token-file --patience --timeout -t --give-up' ;;
        status) options='--watch -w --by --interval' valued='--by --interval' ;;
        top) options='--metadata -m --interval' valued='--metadata -m --interval' ;;
        metrics) options='--by --output -o' valued='--by --output -o' ;;
        gateway) options='--listen --uds --metrics-by --allow-origin --connection-limit --allow-actions' valued='--listen --uds --metrics-by --allow-origin --connection-limit' ;;
        submit) argument=file many=1 options='--bytes -b --lines -l --delimiter -d --null -0 --per-file --as-is --crlf --csv --csv-header --csv-delimiter --csv-quote --csv-escape --metadata -m --title --priority --max-attempts --max-lost --on-dead --backoff --weight --delay --at --after --on-failed-dependency --expires --unique --unique-until --idempotency-key --keep --reservation --shard-by --ack --attach --in-place --wait-for-room --dry-run --wait --output -o --header-once --end-lines --from-json' valued='--bytes -b --lines -l --delimiter -d --crlf --csv-delimiter --csv-quote --csv-escape --metadata -m --title --priority --max-attempts --max-lost --on-dead --backoff --weight --delay --at --after --on-failed-dependency --expires --unique --unique-until --idempotency-key --keep --reservation --shard-by --ack --attach --output -o --from-json' ;;
        wait) argument=open many=1 options='--state --metadata -m --older-than --newer-than --all --timeout -t' valued='--state --metadata -m --older-than --newer-than --timeout -t' ;;
        results) argument=ids options='--output -o --header-once --end-lines --csv-delimiter --csv-quote --csv-escape --follow -f --skip-dead --skip-bad' valued='--output -o --csv-delimiter --csv-quote --csv-escape' ;;
        show) argument=ids options=--running ;;
        list) options='--state --metadata -m --older-than --newer-than --limit -n --before' valued='--state --metadata -m --older-than --newer-than --limit -n --before' ;;
        cancel) argument=open many=1 options='--state --metadata -m --older-than --newer-than --all --dry-run --reason' valued='--state --metadata -m --older-than --newer-than --reason' ;;
        rm) argument=ended many=1 options='--state --metadata -m --older-than --newer-than --all --dry-run' valued='--state --metadata -m --older-than --newer-than' ;;
        'outbox ddl') options=--for valued=--for ;;
        relay) argument=none options='--once --batch --poll --keep --retry' valued='--batch --poll --keep' ;;
        'dead list') argument=ids many=1 options='--metadata -m --older-than --newer-than --reason --exit-status --signal --limit -n' valued='--metadata -m --older-than --newer-than --reason --exit-status --signal --limit -n' ;;
        'dead show') argument=none ;;
        'dead requeue') argument=ids many=1 options='--metadata -m --older-than --newer-than --reason --exit-status --signal --all --dry-run' valued='--metadata -m --older-than --newer-than --reason --exit-status --signal' ;;
        'dead drop') argument=none many=1 options='--metadata -m --older-than --newer-than --reason --exit-status --signal --all --dry-run' valued='--metadata -m --older-than --newer-than --reason --exit-status --signal' ;;
        run) argument='file command' many=1 options='--bytes -b --lines -l --delimiter -d --null -0 --per-file --as-is --crlf --csv --csv-header --csv-delimiter --csv-quote --csv-escape --jobs -j --each --args --server --grace --max-runtime --max-result --on-lost --complete-on --retry-on --bury-on --log-dir --log-failed --progress --clean-env --tty --metadata -m --title --attach --max-attempts --backoff --on-dead --skip-dead --output -o --header-once --end-lines --resume --idempotency-key --keep --fresh' valued='--bytes -b --lines -l --delimiter -d --crlf --csv-delimiter --csv-quote --csv-escape --jobs -j --args --server --grace --max-runtime --max-result --on-lost --complete-on --retry-on --bury-on --log-dir --metadata -m --title --attach --max-attempts --backoff --on-dead --output -o --resume --idempotency-key --keep' ;;
        consume) argument=command many=1 options='--jobs -j --each --args --server --grace --max-runtime --max-result --on-lost --complete-on --retry-on --bury-on --log-dir --log-failed --progress --clean-env --delimiter -d --null -0 --strategy -s --submission --shards --until-empty --until-idle --max-chunks --stop-after --single --tty --name --dry-run --exit-status' valued='--jobs -j --args --server --grace --max-runtime --max-result --on-lost --complete-on --retry-on --bury-on --log-dir --delimiter -d --strategy -s --submission --shards --max-chunks --stop-after --single --name --exit-status' ;;
        reserve) options='--count -n --strategy -s --lease --wait -w' valued='--count -n --strategy -s --lease --wait -w' ;;
        read) argument=none options='--output -o' valued='--output -o' ;;
        complete) argument=none many=1 options='--result -r --then' valued='--result -r --then' ;;
        fail) argument=none many=1 options='--reason --delay --no-retry' valued='--reason --delay' ;;
        release) argument=none many=1 options=--consumer valued=--consumer ;;
        extend) argument=none many=1 options=--lease valued=--lease ;;
        'spark doctor') options='--master --conf --spark-logs' valued='--master --conf' ;;
        'spark submit') argument=file many=1 options='--format --option --schema --select --where --rows-per-chunk -n --bytes-per-chunk -b --chunk-format --metadata -m --title --priority --max-attempts --max-lost --on-dead --backoff --weight --delay --at --after --on-failed-dependency --expires --idempotency-key --reservation --master --conf --spark-logs' valued='--format --option --schema --select --where --rows-per-chunk -n --bytes-per-chunk -b --chunk-format --metadata -m --title --priority --max-attempts --max-lost --on-dead --backoff --weight --delay --at --after --on-failed-dependency --expires --idempotency-key --reservation --master --conf' ;;
        'spark consume') argument=command many=1 options='--jobs -j --each --args --server --grace --max-runtime --max-result --on-lost --complete-on --retry-on --bury-on --log-dir --log-failed --progress --clean-env --delimiter -d --null -0 --master --conf --spark-logs --strategy -s --submission --tasks -t --deadline --until-idle' valued='--jobs -j --args --server --grace --max-runtime --max-result --on-lost --complete-on --retry-on --bury-on --log-dir --delimiter -d --master --conf --strategy -s --submission --tasks -t --deadline' ;;
        'spark results') argument=none options='--output -o --output-format --output-option --overwrite --files --result-format --result-schema --skip-dead --master --conf --spark-logs' valued='--output -o --output-format --output-option --files --result-format --result-schema --master --conf' ;;
        'spark run') argument='file command' many=1 options='--format --option --schema --select --where --rows-per-chunk -n --bytes-per-chunk -b --chunk-format --metadata -m --title --priority --max-attempts --max-lost --on-dead --backoff --weight --delay --at --after --on-failed-dependency --expires --idempotency-key --reservation --jobs -j --each --args --server --grace --max-runtime --max-result --on-lost --complete-on --retry-on --bury-on --log-dir --log-failed --progress --clean-env --output -o --output-format --output-option --overwrite --files --result-format --result-schema --skip-dead --master --conf --spark-logs --strategy -s --tasks -t --deadline --keep' valued='--format --option --schema --select --where --rows-per-chunk -n --bytes-per-chunk -b --chunk-format --metadata -m --title --priority --max-attempts --max-lost --on-dead --backoff --weight --delay --at --after --on-failed-dependency --expires --idempotency-key --reservation --jobs -j --args --server --grace --max-runtime --max-result --on-lost --complete-on --retry-on --bury-on --log-dir --output -o --output-format --output-option --files --result-format --result-schema --master --conf --strategy -s --tasks -t --deadline' ;;
        'spark report') options='--by --since --until --from --step --html --limit -n --tables --master --conf --spark-logs' valued='--by --since --until --from --step --html --limit -n --master --conf' ;;
        'history list') argument=none options='--event --consumer --metadata -m --reason --exit-status --signal --since --until --limit -n --oldest-first --after' valued='--event --consumer --metadata -m --reason --exit-status --signal --since --until --limit -n --after' ;;
        'history export') argument=none options='--event --consumer --metadata -m --reason --exit-status --signal --since --until --output -o --format --rotate --after --after-last' valued='--event --consumer --metadata -m --reason --exit-status --signal --since --until --output -o --format --rotate --after' ;;
        'history prune') options='--older-than --keep' valued='--older-than --keep' ;;
        events) options='--follow -f --since --cursor-file --kind --limit -n' valued='--since --cursor-file --kind --limit -n' ;;
        'notify run') options='--once --since --jobs -j --time-limit --attempts --backoff' valued='--since --jobs -j --time-limit --attempts --backoff' ;;
        'notify dead') ;;
        'notify retry') argument=none many=1 options=--all ;;
        'notify drop') argument=none many=1 options=--all ;;
        explain) argument=explained options='--analyze -a' ;;
        pause) argument=pair many=1 options='--all --operator' ;;
        resume) argument=pair many=1 options='--all --operator' ;;
        limit) argument=keys options='--concurrency -c --rate -r --burst --split --lift' valued='--concurrency -c --rate -r --burst' ;;
        limits) ;;
        weight) argument='pair none' ;;
        audit) options='--limit -n' valued='--limit -n' ;;
        'schedule list') ;;
        'schedule add') argument='none none file' options='--tz --jitter --overlap --catch-up --from --until --pause-on-failure --metadata -m --title --priority --max-attempts --max-lost --on-dead --backoff --weight --delay --expires --reservation' valued='--tz --jitter --overlap --catch-up --from --until --metadata -m --title --priority --max-attempts --max-lost --on-dead --backoff --weight --delay --expires --reservation' ;;
        'schedule edit') argument=none options='--when --content --tz --jitter --overlap --catch-up --from --until --pause-on-failure --metadata -m --title --priority --max-attempts --max-lost --on-dead --backoff --weight --delay --expires --reservation' valued='--when --content --tz --jitter --overlap --catch-up --from --until --metadata -m --title --priority --max-attempts --max-lost --on-dead --backoff --weight --delay --expires --reservation' ;;
        'schedule show') argument=none options=--next valued=--next ;;
        'schedule pause') argument=none many=1 options=--note valued=--note ;;
        'schedule resume') argument=none many=1 ;;
        'schedule trigger') argument=none ;;
        'schedule backfill') argument='none none none' ;;
        'schedule rm') argument=none many=1 ;;
        'queue list') ;;
        'queue create') argument=none options='--strategy -s --lease --max-attempts --backoff --expires --limit' valued='--strategy -s --lease --max-attempts --backoff --expires --limit' ;;
        'queue show') argument=none ;;
        'queue rm') argument=none many=1 ;;
        'token list') ;;
        'token create') argument=none options=--role valued=--role ;;
        'token revoke') argument=none many=1 ;;
        config) ;;
        doctor) argument=none many=1 options=--cron ;;
        check) ;;
        backup) argument=file ;;
        restore) argument=none options=--force ;;
        vacuum) ;;
        demo) options='--consumers --keep --spark' valued=--consumers ;;
        examples) argument=examples options='--output -o' valued='--output -o' ;;
        completion) argument=words words='bash zsh fish' ;;
    esac
    options="$options --json --quiet -q --utc --state-dir --socket --address --token-file --tls-ca-file --tls-client-cert-file --tls-client-key-file --version --help" valued=" $valued --state-dir --socket --token-file --tls-ca-file --tls-client-cert-file --tls-client-key-file "
    if [[ $valued == *" $prev "* ]]; then
        kind=none
        case "$verb $prev" in
            'start --tls-cert-file' | 'start --tls-key-file' | 'start --tls-client-ca-file' | 'start --client-token-file' | 'start --tokens-file') kind=file ;;
            'start --store') kind=dir ;;
            'start --ack') kind=words words='committed replicated' ;;
            'start --durability') kind=words words='durable normal' ;;
            'start --log-level') kind=words words='debug info warning error' ;;
            'restart --tls-cert-file' | 'restart --tls-key-file' | 'restart --tls-client-ca-file' | 'restart --client-token-file' | 'restart --tokens-file') kind=file ;;
            'restart --store') kind=dir ;;
            'restart --ack') kind=words words='committed replicated' ;;
            'restart --durability') kind=words words='durable normal' ;;
            'restart --log-level') kind=words words='debug info warning error' ;;
            'drain --to-token-file') kind=file ;;
            'status --by') kind=keys ;;
            'top -m' | 'top --metadata') kind=pair ;;
            'metrics --by') kind=keys ;;
            'metrics -o' | 'metrics --output') kind=file ;;
            'gateway --uds') kind=file ;;
            'gateway --metrics-by') kind=keys ;;
            'submit --crlf') kind=words words='keep strip' ;;
            'submit -m' | 'submit --metadata') kind=pair ;;
            'submit --on-dead') kind=words words='fail keep' ;;
            'submit --on-failed-dependency') kind=words words='cancel run keep' ;;
            'submit --unique-until') kind=words words='start done' ;;
            'submit --shard-by') kind=keys ;;
            'submit --ack') kind=words words='committed replicated' ;;
            'submit --attach' | 'submit -o' | 'submit --output' | 'submit --from-json') kind=file ;;
            'wait --state') kind=words words='blocked scheduled open' ;;
            'wait -m' | 'wait --metadata') kind=pair ;;
            'results -o' | 'results --output') kind=file ;;
            'list --state') kind=words words='blocked scheduled open completed failed cancelled expired' ;;
            'list -m' | 'list --metadata') kind=pair ;;
            'list --before') kind=ids ;;
            'cancel --state') kind=words words='blocked scheduled open' ;;
            'cancel -m' | 'cancel --metadata') kind=pair ;;
            'rm --state') kind=words words='completed failed cancelled expired' ;;
            'rm -m' | 'rm --metadata') kind=pair ;;
            'outbox ddl --for') kind=words words='postgresql sqlite' ;;
            'dead list -m' | 'dead list --metadata') kind=pair ;;
            'dead requeue -m' | 'dead requeue --metadata') kind=pair ;;
            'dead drop -m' | 'dead drop --metadata') kind=pair ;;
            'run --crlf') kind=words words='keep strip' ;;
            'run --server') kind=words words='frames records' ;;
            'run --on-lost') kind=words words='stop finish' ;;
            'run --log-dir') kind=dir ;;
            'run -m' | 'run --metadata') kind=pair ;;
            'run --attach' | 'run -o' | 'run --output') kind=file ;;
            'run --on-dead') kind=words words='fail keep' ;;
            'consume --server') kind=words words='frames records' ;;
            'consume --on-lost') kind=words words='stop finish' ;;
            'consume --log-dir') kind=dir ;;
            'consume -s' | 'consume --strategy') kind=strategies ;;
            'consume --exit-status') kind=words words='opsq child' ;;
            'reserve -s' | 'reserve --strategy') kind=strategies ;;
            'read -o' | 'read --output') kind=file ;;
            'complete -r' | 'complete --result' | 'complete --then') kind=file ;;
            'release --consumer') kind=consumers ;;
            'spark doctor --conf') kind=pair ;;
            'spark submit --option' | 'spark submit -m' | 'spark submit --metadata' | 'spark submit --conf') kind=pair ;;
            'spark submit --chunk-format') kind=words words='jsonl csv text parquet arrow' ;;
            'spark submit --on-dead') kind=words words='fail keep' ;;
            'spark submit --on-failed-dependency') kind=words words='cancel run keep' ;;
            'spark consume --server') kind=words words='frames records' ;;
            'spark consume --on-lost') kind=words words='stop finish' ;;
            'spark consume --log-dir') kind=dir ;;
            'spark consume --conf') kind=pair ;;
            'spark consume -s' | 'spark consume --strategy') kind=strategies ;;
            'spark results -o' | 'spark results --output') kind=dir ;;
            'spark results --output-option' | 'spark results --conf') kind=pair ;;
            'spark results --result-format') kind=words words='parquet arrow jsonl csv text binary' ;;
            'spark run --option' | 'spark run -m' | 'spark run --metadata' | 'spark run --output-option' | 'spark run --conf') kind=pair ;;
            'spark run --chunk-format') kind=words words='jsonl csv text parquet arrow' ;;
            'spark run --on-dead') kind=words words='fail keep' ;;
            'spark run --on-failed-dependency') kind=words words='cancel run keep' ;;
            'spark run --server') kind=words words='frames records' ;;
            'spark run --on-lost') kind=words words='stop finish' ;;
            'spark run --log-dir' | 'spark run -o' | 'spark run --output') kind=dir ;;
            'spark run --result-format') kind=words words='parquet arrow jsonl csv text binary' ;;
            'spark run -s' | 'spark run --strategy') kind=strategies ;;
            'spark report --by') kind=keys ;;
            'spark report --from') kind=dir ;;
            'spark report --html') kind=file ;;
            'spark report --conf') kind=pair ;;
            'history list --event') kind=words words='completed failed lost dead requeued dropped cancelled expired' ;;
            'history list -m' | 'history list --metadata') kind=pair ;;
            'history export --event') kind=words words='completed failed lost dead requeued dropped cancelled expired' ;;
            'history export -m' | 'history export --metadata') kind=pair ;;
            'history export --format') kind=words words='jsonl csv parquet' ;;
            'events --cursor-file') kind=file ;;
            'events --kind') kind=words words='completed failed cancelled expired dead paused resumed fired missed' ;;
            'schedule add --overlap') kind=words words='skip queue allow cancel' ;;
            'schedule add -m' | 'schedule add --metadata') kind=pair ;;
            'schedule add --on-dead') kind=words words='fail keep' ;;
            'schedule edit --content') kind=file ;;
            'schedule edit --overlap') kind=words words='skip queue allow cancel' ;;
            'schedule edit -m' | 'schedule edit --metadata') kind=pair ;;
            'schedule edit --on-dead') kind=words words='fail keep' ;;
            'queue create -s' | 'queue create --strategy') kind=strategies ;;
            'examples -o' | 'examples --output') kind=dir ;;
            *' --state-dir') kind=dir ;;
            *' --socket' | *' --token-file' | *' --tls-ca-file' | *' --tls-client-cert-file' | *' --tls-client-key-file') kind=file ;;
        esac
    fi
    # what lies between the verb and the cursor: is "--" there, or the program that opsq is to run?
    for ((i++; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $valued == *" $word "* ]]; then
            ((i++))
            [[ ${COMP_WORDS[i]} == = ]] && ((i++))
        elif [[ $argument == command && ($word == -- || $word != -*) ]]; then
            [[ $word == -- ]] && ((i++))
            _opsq_program "$i"
            return 0
        elif [[ $word == -- ]]; then
            ended=1
        elif [[ $word != -* ]]; then
            ((position++))
        fi
    done
    if [[ -z $kind ]]; then
        local kinds=($argument none)
        ((position >= ${#kinds[@]})) && position=$((${#kinds[@]} - 1))
        ((position)) && [[ -n $many && ${kinds[position]} == none ]] && ((position--))
        kind=${kinds[position]}
        if [[ $cur == -* && -z $ended ]]; then
            kind=words words=$options
        fi
    fi
    case $kind in
        file | dir) return 0 ;; # bash itself does it
        command) _opsq_program "$COMP_CWORD" ;;
        words) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
        pair)
            _opsq_ask keys =
            _opsq_tune -o nospace
            ;;
        none | '') ;;
        *)
            _opsq_ask "$kind"
            [[ ${COMPREPLY[0]} == *'(' ]] && _opsq_tune -o nospace
            ;;
    esac
    _opsq_tune +o default +o bashdefault
}

complete -o default -o bashdefault -F _opsq opsq
