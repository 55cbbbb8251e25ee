"""Names that other libraries have for what this one has, for the hints of errors.

Letters do not lead from `num_episodes` to `len(view)`. Gymnasium, Minari, LeRobot, datasets, RLDS, TorchRL,
Tianshou, Stable-Baselines3, RLlib, d3rlpy, D4RL, robomimic, imitation, Acme, Reverb, torch, grain, tf.data,
webdataset, pandas, Polars, DuckDB, pyarrow, xarray, zarr, h5py, Rerun, FiftyOne, W&B, MLflow and Lance use
them.
"""

from __future__ import annotations

#: By place: what is meant, and the names elsewhere. Places with brackets take arguments.
_HABITS = {
    "module": {
        "open": (
            "load read connect Dataset EpisodeDataset LeRobotDataset MinariDataset from_path open_dataset "
            "load_dataset load_from_disk read_parquet scan read_store open_store Store File"
        ),
        "create": "new make init new_store create_store create_dataset",
        "import_dataset": (
            "convert from_minari from_lerobot from_rlds from_hdf5 from_parquet from_dataset from_pandas "
            "from_polars from_dict from_arrow from_files from_generator from_d4rl from_gym read_minari "
            "read_hdf5 read_csv load_hdf5 load_minari import_ ingest"
        ),
        "lake": "list_datasets list_local_datasets datasets list_stores stores catalog database Lakehouse",
        "merge": "concat concatenate concatenate_datasets combine combine_datasets vstack",
        "collect": (
            "rollout run_episodes sample_trajectories generate_trajectories evaluate evaluate_policy"
        ),
        "pull": "download download_dataset snapshot_download clone load_from_hub from_hub from_pretrained",
        "store.loader(...)": "DataLoader Dataloader loader ArrayLoader",
        "store.explore()": "explore view show visualize viz launch_app",
        "store.record(env)": (
            "Recorder RecordEpisodes RecordEpisodeStatistics DataCollector Collector Writer record wrap "
            "log ArrayRecordWriter TrajectoryWriter"
        ),
    },
    "view": {
        "len(view)": (
            "num_episodes total_episodes n_episodes nb_episodes num_trajectories num_trajs num_rows "
            "height count n_trajectories"
        ),
        'view.sql("SELECT sum(length) FROM episodes")': (
            "num_steps total_steps n_steps num_frames total_frames num_transitions n_transitions "
            "num_samples total_timesteps"
        ),
        "view[:n]": "limit head take first",
        "view[-n:]": "tail last",
        "view[position]": "get_episode get get_trajectory episode iloc row fetch iter_rows",
        "for episode in view": (
            "iterate_episodes iter_episodes iterate trajectories episode_iterator iter_trajectories"
        ),
        "view.to.pandas()": (
            "df to_df to_dataframe dataframe as_dataframe fetchdf convert_to_dataframe fetch_df"
        ),
        "view.episodes.collect() or view.steps.collect()": (
            "to_polars pl polars to_arrow arrow fetch_arrow_table to_table table to_pylist to_dict "
            "to_lazy lazy"
        ),
        "view.to.torchrl(), .tianshou(), .sb3() or .d3rlpy()": "to_replay_buffer as_replay_buffer to_buffer",
        'view.loader(output="torch")': (
            "to_torch torch to_tensors as_torch to_tensordict with_format set_format to_numpy numpy to_tf "
            "as_numpy_iterator"
        ),
        "view.loader(batch_size)": (
            "dataloader data_loader get_dataloader to_dataloader DataLoader batches batch iter_batches "
            "get_batch sample_batch iter_torch_batches sample_transitions transitions_loader as_dataset"
        ),
        "view.loader(shuffle=True)": "shuffle random_shuffle permute",
        "view.sample_episodes(n)": "sample sample_trajectories random_episode draw",
        "view.filter(condition)": (
            "filter_episodes select_episodes with_episode_filter where_sql filter_by match query_episodes "
            "select_trajectories keep"
        ),
        "view.episodes or view.sql(query)": "select execute aggregate group_by groupby agg value_counts ask",
        "view.sort(column)": "order_by sort_values sort_by orderby",
        "store.split(...)": "train_test_split split_dataset random_split split_by_episode",
        "writer() and its write_episode(...)": (
            "add_episode append add extend push insert write write_episode put log save_episode "
            "store_episode add_trajectory add_transition add_step add_frame add_batch "
            "update_dataset_from_buffer create_episode begin_episode log_episode"
        ),
        "store.map_episodes(function)": (
            "map apply transform with_columns assign add_column map_dataset update_episodes"
        ),
        "store.annotate(frame) or store.label(episodes, ...)": (
            "set_metadata update_episode_metadata set_values tag_samples update set_column label_episodes "
            "add_labels"
        ),
        "store.delete(condition)": (
            "remove drop delete_episodes remove_episodes drop_episodes delete_episode prune"
        ),
        "view.steps.collect_schema() and view.observation_space": (
            "features schema columns dtypes column_names keys shape info_spec element_spec structure"
        ),
        'view.card, and view.runs for "metadata.*"': (
            "metadata attrs info config storage_metadata dataset_info tags_of"
        ),
        "view.stats()": "describe summary statistics meta_stats compute_stats get_stats stats_dict",
        "view.make_env()": "env recover_environment make make_environment env_spec spec get_env recover_env",
        "view[position].video()": "render play video animate show_video to_video visualize_episode",
        "store.explore()": "view show visualize viz launch launch_app browse gui app dashboard",
        "view.copy(path)": "save save_to_disk dump to_parquet write_parquet persist clone to_disk",
        "view.export(path, format)": (
            "to_hdf5 to_rlds to_lerobot to_csv to_json write_csv to_tfds convert convert_to"
        ),
        "store.publish(target)": "push_to_hub upload push_to upload_dataset publish_dataset release",
        "store.history()": "versions log_history checkpoints commits list_versions",
        "nothing: a store has no open files; close its recorders and writers": "close shutdown stop",
        "close() of a recorder or a writer": (
            "flush commit save_changes finalize consolidate sync end_episode"
        ),
        "view.steps or view.loader()": (
            "observations actions rewards terminals next_observations dataset data obs observation reward "
            "action get_dataset qlearning_dataset hf_dataset"
        ),
        'view.episodes.select("episode_id")': (
            "episode_ids episode_indices indices ids episode_data_index index"
        ),
        'view.episodes.select("episode_return")': (
            "returns episode_returns get_returns total_rewards compute_returns"
        ),
        'view.episodes.select("length")': "lengths episode_lengths get_lengths episode_length",
        "view.steps_where(condition)": "filter_steps where_steps steps_filter filter_transitions find_steps",
    },
    "episode": {
        "id": "episode_id name uid uuid episode_index traj_id trajectory_id key",
        "length": "num_steps n_steps size total_steps T num_frames num_timesteps nsteps shape count",
        "observations": "obs observation states state obses s images_of",
        "observations[1:]": (
            "next_observations next_obs next_observation obs_next next_states new_obs observations_next"
        ),
        "actions": "acts act action a controls",
        "rewards": "rews rew reward r",
        "terminations": "terminals terminal dones done terminateds dw is_terminal is_last",
        "truncations": "timeouts timeout truncateds",
        "episode_return": (
            "total_reward total_return ret returns reward_sum cumulative_reward score get_return"
        ),
        "infos and info_arrays": "info extra_info env_infos agent_infos",
        "policy": "extras extra_model_outputs logprobs log_probs values policy_info",
        "frame()": (
            "steps to_polars df to_df to_dataframe table data transitions to_arrow as_dict to_dict arrays "
            "numpy to_numpy columns rows get_data"
        ),
        "frame().to_pandas()": "to_pandas pandas",
        "frames() or video()": "images image rgb pixels cameras video_frames",
        "video()": "render play animate show_video visualize to_video save_video",
        "plot()": "draw chart visualise show",
        "metadata and annotations": "tags labels attrs attributes task tasks language_instruction",
        "replay()": "rerun verify check reproduce",
        "rollout(...) of its store": "messages prompt completion tokens",
    },
    "loader()": {
        "window": (
            "sequence_length seq_len window_size horizon context_length context_len trajectory_length "
            "traj_len slice_len chunk_size num_frames length sample_length block_size delta_timestamps "
            "n_frames window_length"
        ),
        "n_step": "nstep n_steps nsteps multi_step n_step_return",
        "gamma": "discount discount_factor",
        "columns": "keys fields features select obs_keys dataset_keys names",
        "shuffle": "random shuffle_buffer_size shuffle_files shuffle_buffer randomize",
        "weights": "sampler sample_weights priority priorities sampling sampler_weights alpha",
        "transforms": (
            "transform map_fn augmentation collate_fn preprocess postprocess image_transforms processors"
        ),
        "output": "format framework return_type device as_torch output_type backend to dtype return_tensors",
        "cache": "memory_map mmap in_memory keep_in_memory streaming num_slots cache_dir",
        "shard": "rank world_size num_shards shard_index num_replicas shard_options sharding",
        "seed": "rng generator random_state random_seed",
        "follow": "live tail online",
        "batch_size=el.Batches(n, drop_last=True)": "drop_last drop_remainder drop_last_batch",
        "batch_size=el.Batches(n, prefetch=2)": (
            "prefetch prefetch_factor buffer_size prefetch_size num_prefetch"
        ),
        "torch_loader(num_workers=n) of the loader": (
            "num_workers workers num_proc num_threads num_parallel_calls worker_count persistent_workers "
            "multiprocessing_context"
        ),
        'output=el.Output("torch", device="cuda")': "pin_memory non_blocking cuda pin_memory_device",
        "batch_size": "batch size n num_samples batchsize bs",
    },
    "create()": {
        "env": "env_id env_spec environment spec environment_id",
        "observation_space": "obs_space features state_space observation_spec",
        "action_space": "act_space action_spec",
        "path": "name dataset_id repo_id root dir directory url uri",
        "exist_ok": "overwrite mode if_exists append",
        "card": "metadata description author tags info",
        "encodings": "use_videos codec compression vcodec image_format jpeg_quality video",
    },
    "open()": {
        "version": "revision tag snapshot checkpoint",
        "path": "name dataset_id repo_id root dir directory url uri",
        "storage_options": "fs filesystem options credentials token s3",
    },
    "collect()": {
        "episodes": "n_episodes num_episodes n_episode n_eval_episodes max_episodes min_episodes n_rollouts",
        "steps": (
            "n_steps num_steps n_step total_timesteps num_timesteps frames total_frames frames_per_batch "
            "max_steps"
        ),
        "workers": "num_envs n_envs num_workers n_workers num_env_runners",
        "on_step": "callback step_callback on_step_end",
        "on_episode": "episode_callback on_episode_end",
        "render": "render_mode human",
        "policy=None or random=True": "random_policy exploration",
    },
    "record()": {
        "run": "name run_name experiment experiment_name run_id dataset_id group project",
        "metadata": "config params hparams hyperparameters tags info notes",
        "record_infos": "infos info_keys info_keywords include_infos",
    },
}


def meant(place: str, name: object) -> str | None:
    """Return what is meant by a name that other libraries have; None if it is no such name.

    >>> meant("view", "num_episodes"), meant("loader()", "seq_len"), meant("view", "nothing")
    ('len(view)', 'window', None)
    """
    for target, names in _HABITS.get(place, {}).items():
        if name in names.split():
            return target
    return None
